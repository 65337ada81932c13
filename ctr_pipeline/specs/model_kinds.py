"""Every model as the section `model:` of the config; needs no Keras.

A model is a class here, and a module of its name in `models/` with a function
`build(inputs: ModelInputs, config: <its class>, seed: int)`, which returns logits, shape (batch,).
"""

import difflib
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import Field, field_validator, model_validator

from ctr_pipeline.specs.section import IS_PATH, LayerWidths, NamedSection, kinds_of, union_of

Widths = tuple[Annotated[int, Field(ge=1)], ...]


class ModelConfig(NamedSection):
    """A model, with the keys that every model has."""

    noun: ClassVar[str] = "model"
    title: ClassVar[str]
    """As papers and people write it."""
    use_xla: ClassVar[bool] = True
    """Whether it steps faster when compiled by XLA than by TensorFlow's own kernels."""
    needs_sequences: ClassVar[bool] = False
    """Whether it is of no use where no feature is a sequence."""

    name: str
    embedding_dim: int = Field(default=8, ge=1, le=1024, description="Length of an embedding.")

    @property
    def compared_feature(self) -> str | None:
        """The feature with which it compares the elements of sequences; None: it compares none."""
        return None

    @property
    def code_file(self) -> str | None:
        """The user's own file that builds it; None: it is one of the built-in models."""
        return None


class DeepModelConfig(ModelConfig):
    """A model with a deep part."""

    hidden_units: Annotated[Widths, LayerWidths(on_inputs=True)] = Field(
        default=(128, 64), description="Layer sizes of the deep part."
    )
    dropout: float = Field(
        default=0.2, ge=0, lt=1, description="Share of hidden units dropped after each layer."
    )


class DeepFMConfig(DeepModelConfig):
    """DeepFM."""

    title: ClassVar[str] = "DeepFM"
    name: Literal["deepfm"] = "deepfm"


class WideAndDeepConfig(DeepModelConfig):
    """Wide & Deep."""

    title: ClassVar[str] = "Wide & Deep"
    name: Literal["wide_and_deep"] = "wide_and_deep"


class XDeepFMConfig(DeepModelConfig):
    """xDeepFM."""

    title: ClassVar[str] = "xDeepFM"
    name: Literal["xdeepfm"] = "xdeepfm"
    cin_layers: Annotated[Widths, LayerWidths()] = Field(
        default=(16, 16), description="Feature maps of the compressed interaction layers."
    )


class CrossModelConfig(DeepModelConfig):
    """A model with a cross network beside the deep part."""

    cross_layers: int = Field(default=2, ge=1, le=16, description="Number of cross layers.")


class DCNConfig(CrossModelConfig):
    """DCN."""

    title: ClassVar[str] = "DCN"
    name: Literal["dcn"] = "dcn"


class DCNv2Config(CrossModelConfig):
    """DCN v2."""

    title: ClassVar[str] = "DCN v2"
    name: Literal["dcnv2"] = "dcnv2"
    cross_rank: int | None = Field(
        default=None,
        ge=1,
        description="Rank of the matrices of the cross layers; null: full matrices.",
    )


class AutoIntConfig(DeepModelConfig):
    """AutoInt."""

    title: ClassVar[str] = "AutoInt"
    # Half as fast again without XLA on two cores.
    use_xla: ClassVar[bool] = False
    name: Literal["autoint"] = "autoint"
    attention_layers: int = Field(
        default=2, ge=1, le=16, description="Number of interacting layers."
    )
    attention_heads: int = Field(
        default=2, ge=1, le=64, description="Number of attention heads of a layer."
    )
    attention_units: int = Field(default=16, ge=1, le=1024, description="Units of a head.")


class FiBiNETConfig(DeepModelConfig):
    """FiBiNET."""

    title: ClassVar[str] = "FiBiNET"
    name: Literal["fibinet"] = "fibinet"
    senet_reduction: int = Field(
        default=3,
        ge=1,
        description="Reduction ratio of the squeeze-excitation network that weighs fields.",
    )
    bilinear: Literal["all", "each", "interaction"] = Field(
        default="interaction",
        description="One matrix for all pairs of fields, one per field, or one per pair.",
    )


class MaskNetConfig(DeepModelConfig):
    """MaskNet."""

    title: ClassVar[str] = "MaskNet"
    name: Literal["masknet"] = "masknet"
    mask_blocks: int = Field(default=3, ge=1, le=16, description="Number of blocks.")
    mask_block_units: int = Field(default=64, ge=1, description="Units of a block.")
    mask_units: int = Field(
        default=64, ge=1, description="Hidden units of the network that makes a mask."
    )
    mask_structure: Literal["parallel", "serial"] = Field(
        default="parallel", description="Blocks side by side, or one after another."
    )


class FinalMLPConfig(DeepModelConfig):
    """FinalMLP."""

    title: ClassVar[str] = "FinalMLP"
    name: Literal["finalmlp"] = "finalmlp"
    second_hidden_units: Annotated[Widths | None, LayerWidths(on_inputs=True)] = Field(
        default=None,
        description="Layer sizes of the second stream; null: those of hidden_units.",
    )
    fusion_heads: int = Field(
        default=1,
        ge=1,
        description="Number of heads of the bilinear fusion of the streams.",
    )

    @model_validator(mode="after")
    def _heads_divide_streams(self) -> "FinalMLPConfig":
        """Heads cut the last layer of each stream into equal pieces."""
        streams = (self.hidden_units, self.second_hidden_units or self.hidden_units)
        last = {units[-1] if units else 0 for units in streams}
        if 0 in last:
            raise ValueError(
                "'finalmlp' needs at least one layer in hidden_units and second_hidden_units"
            )
        odd = sorted(units for units in last if units % self.fusion_heads)
        if odd:
            raise ValueError(
                f"fusion_heads {self.fusion_heads} does not divide the last layer's {odd[0]} units"
            )
        return self


class DLRMConfig(DeepModelConfig):
    """DLRM."""

    title: ClassVar[str] = "DLRM"
    name: Literal["dlrm"] = "dlrm"
    bottom_units: Annotated[Widths, LayerWidths()] = Field(
        default=(64,),
        description="Layer sizes of the bottom network, before its layer of embedding_dim units.",
    )


class DINConfig(DeepModelConfig):
    """DIN."""

    title: ClassVar[str] = "DIN"
    needs_sequences: ClassVar[bool] = True
    name: Literal["din"] = "din"
    target: str = Field(
        description="Feature, such as the item shown, with which the elements of sequences are "
        "compared."
    )
    activation_units: Annotated[Widths, LayerWidths()] = Field(
        default=(36,), description="Layer sizes of the network that weighs elements."
    )

    @property
    def compared_feature(self) -> str:
        """The target."""
        return self.target


class CustomModelConfig(ModelConfig):
    """A model of the user's own."""

    title: ClassVar[str] = "Custom model"
    name: Literal["custom"] = "custom"
    file: Annotated[str, IS_PATH] = Field(
        description="Python file that defines build_model(inputs, options)."
    )
    options: dict[str, Any] = Field(default={}, description="Options for build_model.")

    @property
    def code_file(self) -> str:
        """The Python file."""
        return self.file

    @field_validator("options", mode="before")
    @classmethod
    def _lists_stay_lists(cls, value: Any) -> Any:
        """Gives lists back that were made tuples with the rest of the config."""
        if isinstance(value, dict):
            return {key: cls._lists_stay_lists(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [cls._lists_stay_lists(item) for item in value]
        return value


MODELS: dict[str, type[ModelConfig]] = kinds_of(ModelConfig)
"""Every model by its name in YAML."""

if TYPE_CHECKING:
    AnyModel: TypeAlias = ModelConfig
else:
    AnyModel = union_of(ModelConfig)


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


def member_model(shared: ModelConfig, own: ModelConfig) -> ModelConfig:
    """A model of an ensemble: what it does not give is as in `shared`, where that has the key.

    Args:
        shared: The section `model:`.
        own: An entry of `train.ensemble_models`.

    Raises:
        ValidationError: The keys do not go together.
    """
    kind = type(own)
    values = {key: getattr(own, key) for key in own.model_fields_set | {"name"}}
    for key in kind.model_fields:
        if key in type(shared).model_fields:
            values.setdefault(key, getattr(shared, key))
    return kind.model_validate(values)
