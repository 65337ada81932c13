"""Every model: its name, what people call it, and the config keys it uses; needs no Keras.

A model is a line here and a module of its name beside this one with a function
`build(inputs: ModelInputs, config: ModelConfig, seed: int)`, which returns logits, shape (batch,).
"""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

from ctr_pipeline.config.key_facts import keys_set
from ctr_pipeline.config.models import ModelConfig

_ALWAYS = frozenset({"name", "embedding_dim"})
_DEEP = _ALWAYS | {"hidden_units", "dropout"}


@dataclass(frozen=True)
class ModelKind:
    """One architecture.

    Attributes:
        name: `model.name` in YAML, and the module that builds it.
        title: As papers and people write it.
        keys: Keys of the section `model:` that it uses.
        looks_into_sequences: Whether it gets the elements of sequences one by one.
        use_xla: Whether it steps faster when compiled by XLA than by TensorFlow's own kernels.
    """

    name: str
    title: str
    keys: frozenset[str]
    looks_into_sequences: bool = False
    use_xla: bool = True


_KINDS = (
    ModelKind("deepfm", "DeepFM", _DEEP),
    ModelKind("wide_and_deep", "Wide & Deep", _DEEP),
    ModelKind("xdeepfm", "xDeepFM", _DEEP | {"cin_layers"}),
    ModelKind("dcn", "DCN", _DEEP | {"cross_layers"}),
    ModelKind("dcnv2", "DCN v2", _DEEP | {"cross_layers", "cross_rank"}),
    # Half as fast again without XLA on two cores.
    ModelKind(
        "autoint",
        "AutoInt",
        _DEEP | {"attention_layers", "attention_heads", "attention_units"},
        use_xla=False,
    ),
    ModelKind("fibinet", "FiBiNET", _DEEP | {"senet_reduction", "bilinear"}),
    ModelKind(
        "masknet",
        "MaskNet",
        _DEEP | {"mask_blocks", "mask_block_units", "mask_units", "mask_structure"},
    ),
    ModelKind("finalmlp", "FinalMLP", _DEEP | {"second_hidden_units", "fusion_heads"}),
    ModelKind("dlrm", "DLRM", _DEEP | {"bottom_units"}),
    ModelKind("din", "DIN", _DEEP | {"target", "activation_units"}, looks_into_sequences=True),
    ModelKind("custom", "Custom model", _ALWAYS | {"file", "options"}),
)
MODELS = {kind.name: kind for kind in _KINDS}
"""Every model by its name in YAML."""


def title_of(name: str) -> str:
    """What people call a model; a name that is not known as it is."""
    return MODELS[name].title if name in MODELS else name


def nearest_model_name(name: str) -> str | None:
    """The model name that `name` was probably meant to be, or None."""
    plain = name.lower().replace("-", "_")
    # Spellings that people use, such as "Wide&Deep" and "DCN-v2".
    folded = {known.replace("_", ""): known for known in MODELS}
    squeezed = plain.replace("_", "").replace("&", "and").replace(" ", "")
    if squeezed in folded:
        return folded[squeezed]
    near = difflib.get_close_matches(plain, MODELS, n=1, cutoff=0.5)
    return near[0] if near else None


def member_model(config: ModelConfig, name: str) -> ModelConfig:
    """The section of a model of kind `name`, with the keys of `config` that this kind uses."""
    return ModelConfig(
        **{key: getattr(config, key) for key in MODELS[name].keys if key != "name"}, name=name
    )


def check_model(config: ModelConfig, members: Sequence[str] = ()) -> list[str]:
    """What is wrong with the `model:` section, one sentence a problem; empty if nothing is.

    A key that the model does not use is a problem only where it is set to something else than its
    default: a resolved config spells all of them out.

    Args:
        config: The section.
        members: `train.ensemble_models`, whose keys it may hold as well.
    """
    unknown = [name for name in (config.name, *members) if name not in MODELS]
    if unknown:
        near = nearest_model_name(unknown[0])
        hint = f" (did you mean '{near}'?)" if near else ""
        return [f"unknown model '{unknown[0]}'{hint}; there are {', '.join(MODELS)}"]
    kinds = list(dict.fromkeys((config.name, *members)))
    used = frozenset[str]().union(*(MODELS[kind].keys for kind in kinds))
    problems = []
    for key in sorted(keys_set(config) - used):
        owners = [known.name for known in _KINDS if key in known.keys]
        named = " and ".join(f"'{kind}'" for kind in kinds)
        has = "has" if len(kinds) == 1 else "have"
        problems.append(f"{named} {has} no key '{key}'; it belongs to {', '.join(owners)}")
    if "custom" in members and config.name != "custom":
        problems.append(
            "'custom' in train.ensemble_models needs the model's file: set model.name to custom as "
            "well"
        )
    if "din" in kinds and config.target is None:
        problems.append("'din' needs the key 'target': the feature that sequences are held against")
    if "finalmlp" in kinds:
        problems += _check_heads(config)
    return problems


def _check_heads(config: ModelConfig) -> list[str]:
    """Heads cut the last layer of each stream into equal pieces."""
    streams = (config.hidden_units, config.second_hidden_units or config.hidden_units)
    last = {units[-1] if units else 0 for units in streams}
    if 0 in last:
        return ["'finalmlp' needs at least one layer in hidden_units and second_hidden_units"]
    return [
        f"fusion_heads {config.fusion_heads} does not divide the last layer's {units} units"
        for units in sorted(last)
        if units % config.fusion_heads
    ]
