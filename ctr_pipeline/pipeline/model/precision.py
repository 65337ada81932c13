"""The precision in which the gradients of the dense part are computed on this processor."""

from typing import Literal

from ctr_pipeline.config.loader import LoadedConfig
from ctr_pipeline.config.models import TrainConfig
from ctr_pipeline.errors import ConfigError
from ctr_pipeline.machine import multiplies_bfloat16, processor_flags
from ctr_pipeline.progress import Progress

Precision = Literal["float32", "bfloat16"]

_NOT_HERE = (
    "bfloat16 needs a processor with AMX or AVX512-BF16, and this one has neither; take float32, "
    "or auto, which takes bfloat16 where there is one"
)


def decide_precision(wanted: Literal["float32", "bfloat16", "auto"], *, has: bool) -> Precision:
    """The precision to train in.

    Args:
        wanted: `train.precision`.
        has: Whether the processor multiplies bfloat16.
    """
    if wanted == "auto":
        return "bfloat16" if has else "float32"
    return wanted


def precision_of(train: TrainConfig) -> Precision:
    """The precision to train in on this processor."""
    return decide_precision(train.precision, has=multiplies_bfloat16(processor_flags()))


def check_precision(loaded: LoadedConfig, progress: Progress) -> None:
    """Refuses bfloat16 on a processor without it, which would be slower; logs the choice of `auto`.

    Raises:
        ConfigError: The config asks for it, and the processor does not have it.
    """
    wanted = loaded.config.train.precision
    has = multiplies_bfloat16(processor_flags())
    if wanted == "bfloat16" and not has:
        raise ConfigError([loaded.problem_at("train.precision", _NOT_HERE)])
    if wanted == "auto":
        taken = decide_precision(wanted, has=has)
        why = "this processor multiplies it" if has else "this processor has no bfloat16 products"
        progress.log(f"train.precision: auto takes {taken}, since {why}")
