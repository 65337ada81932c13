"""What the models are called and which config keys each uses; needs no Keras.

The builders are in `registry`, under the same names.
"""

import difflib
from collections.abc import Sequence

from ctr_pipeline.config.models import ModelConfig

_ALWAYS = frozenset({"name", "embedding_dim"})
_DEEP = _ALWAYS | {"hidden_units", "dropout"}

MODEL_KEYS: dict[str, frozenset[str]] = {
    "deepfm": _DEEP,
    "wide_and_deep": _DEEP,
    "xdeepfm": _DEEP | {"cin_layers"},
    "dcn": _DEEP | {"cross_layers"},
    "dcnv2": _DEEP | {"cross_layers"},
    "autoint": _DEEP | {"attention_layers", "attention_heads", "attention_units"},
    "fibinet": _DEEP | {"senet_reduction", "bilinear"},
    "masknet": _DEEP | {"mask_blocks", "mask_block_units", "mask_units", "mask_structure"},
    "finalmlp": _DEEP | {"second_hidden_units", "fusion_heads"},
    "dlrm": _DEEP | {"bottom_units"},
    "din": _DEEP | {"target", "activation_units"},
    "custom": _ALWAYS | {"file", "options"},
}
"""Every model by its YAML name, with the keys of `model:` that it uses."""


WITHOUT_XLA = frozenset({"autoint"})
"""Models that TensorFlow's own kernels step faster, half as fast again on two cores."""


TAKES_SLOTS = frozenset({"din"})
"""Models that look into sequences, and are given their elements one by one."""


def nearest_model_name(name: str) -> str | None:
    """The model name that `name` was probably meant to be, or None."""
    plain = name.lower().replace("-", "_")
    # Spellings that people use, such as "Wide&Deep" and "DCN-v2".
    folded = {known.replace("_", ""): known for known in MODEL_KEYS}
    squeezed = plain.replace("_", "").replace("&", "and").replace(" ", "")
    if squeezed in folded:
        return folded[squeezed]
    near = difflib.get_close_matches(plain, MODEL_KEYS, n=1, cutoff=0.5)
    return near[0] if near else None


def member_model(config: ModelConfig, name: str) -> ModelConfig:
    """The section of a model of kind `name`, with the keys of `config` that this kind uses."""
    return ModelConfig(
        **{key: getattr(config, key) for key in MODEL_KEYS[name] if key != "name"}, name=name
    )


def check_model(config: ModelConfig, members: Sequence[str] = ()) -> list[str]:
    """What is wrong with the `model:` section, one sentence a problem; empty if nothing is.

    A key that the model does not use is a problem only where it is set to something else than its
    default: a resolved config spells all of them out.

    Args:
        config: The section.
        members: `train.ensemble_models`, whose keys it may hold as well.
    """
    unknown = [name for name in (config.name, *members) if name not in MODEL_KEYS]
    if unknown:
        near = nearest_model_name(unknown[0])
        hint = f" (did you mean '{near}'?)" if near else ""
        return [f"unknown model '{unknown[0]}'{hint}; there are {', '.join(MODEL_KEYS)}"]
    kinds = list(dict.fromkeys((config.name, *members)))
    used = frozenset[str]().union(*(MODEL_KEYS[kind] for kind in kinds))
    problems = []
    default = ModelConfig()
    told = {key for key in config.model_fields_set if getattr(config, key) != getattr(default, key)}
    for key in sorted(told - used):
        owners = [name for name, keys in MODEL_KEYS.items() if key in keys]
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
