"""Every model: its name, its title and the config keys it uses; needs neither config nor Keras.

A model is a line here and a module of its name in `models/` with a function
`build(inputs: ModelInputs, config: ModelConfig, seed: int)`, which returns logits, shape (batch,).
"""

import difflib
from dataclasses import dataclass

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


def names_with(key: str) -> str:
    """The names of the models that use a key of `model:`, as a list in words."""
    return ", ".join(kind.name for kind in _KINDS if key in kind.keys)
