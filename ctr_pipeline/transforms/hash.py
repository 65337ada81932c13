"""`hash`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from ctr_pipeline.transforms.base import (
    Fitting,
    IdKernel,
    IdStep,
    IdTransform,
    TransformKind,
    too_many_ids,
)
from ctr_pipeline.transforms.cross import CrossPart, CrossStep

if TYPE_CHECKING:
    from ctr_pipeline.kernels.arrow_values import TextColumn


class HashStep(IdStep):
    """Fingerprint64 modulo `num_bins`, mixed before by all functions but the first."""

    name: Literal["hash"] = "hash"
    num_bins: int
    function: int = 0

    def open_kernel(self, folder: Path) -> IdKernel:
        """Returns a kernel of a text column."""
        from ctr_pipeline.kernels.text_ids import hash_ids, mixed_hash_ids

        del folder

        def kernel(text: "TextColumn", out: np.ndarray) -> None:
            if self.function == 0:
                hash_ids(text, self.num_bins, missing_id=self.missing_id, out=out)
            else:
                mixed_hash_ids(
                    text,
                    self.num_bins,
                    function=self.function,
                    missing_id=self.missing_id,
                    out=out,
                )

        return kernel


class Hash(IdTransform):
    """FarmHash Fingerprint64 of the value, modulo `buckets`; missing values have their own id.

    With several functions the value has an id by each, in a field of its own: values that share a
    bucket of one seldom share that of another (J. Serrà and A. Karatzoglou, "Getting deep
    recommenders fit: Bloom embeddings for sparse binary input/output networks", RecSys 2017).
    """

    kind: ClassVar[TransformKind] = TransformKind.TEXT_TO_ID
    example: ClassVar[str] = "{columns: user_id, id: {hash: {buckets: 1_000_000}}}"
    short_form: ClassVar[dict[str, Any]] = {"buckets": 1_000_000}
    takes_cross: ClassVar[bool] = True
    name: Literal["hash"] = "hash"
    buckets: int = Field(ge=1, le=2**40, description="Number of buckets.")
    functions: int = Field(default=1, ge=1, le=8, description="Hash functions, a field each.")

    def option_problems(self) -> list[str]:
        """Returns what is wrong with the options."""
        return too_many_ids(self.name, "buckets", self.buckets)

    @property
    def is_of_value(self) -> bool:
        """A value has its id, which others may share."""
        return True

    @property
    def num_fields(self) -> int:
        """One of each function."""
        return self.functions

    def ids_before_fit(self) -> int | None:
        """The buckets of all functions, and their missing ids."""
        return (self.buckets + 1) * self.functions

    def fit_cross(self, parts: tuple[CrossPart, ...]) -> tuple[IdStep, int]:
        """Returns the step that hashes the texts of several columns together."""
        step = CrossStep(parts=parts, num_bins=self.buckets, missing_id=self.buckets)
        return step, self.buckets + 1

    def fit(self, fitting: Fitting) -> tuple[IdStep, int]:
        """Returns the step of the first function; nothing is fitted."""
        del fitting
        return HashStep(num_bins=self.buckets, missing_id=self.buckets), self.buckets + 1

    def fit_fields(self, fitting: Fitting) -> list[tuple[str, IdStep, int]]:
        """Returns a field for each function."""
        step, num_ids = self.fit(fitting)
        if self.functions == 1:
            return [("", step, num_ids)]
        return [
            (f".{function + 1}", step.model_copy(update={"function": function}), num_ids)
            for function in range(self.functions)
        ]
