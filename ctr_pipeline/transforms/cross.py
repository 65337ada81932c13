"""The step of a cross of several columns; in the config a cross is a feature, not a transform."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from ctr_pipeline.specs.columns import ColumnType
from ctr_pipeline.transforms.base import IdKernel, IdStep
from ctr_pipeline.transforms.round_identity import RoundIdentityStep
from ctr_pipeline.transforms.shared.intervals import IntervalsStep


class CrossPart(BaseModel):
    """One column of a cross.

    Attributes:
        column: The column.
        column_type: How it is read.
        step: From a number to the id that is crossed; None: a text is crossed as it is.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")
    column: str
    column_type: ColumnType
    step: Annotated[IntervalsStep | RoundIdentityStep, Field(discriminator="name")] | None


class CrossStep(IdStep):
    """Fingerprint64 of the parts' joined texts, modulo `num_bins`; see `kernels.crosses`."""

    name: Literal["cross"] = "cross"
    parts: tuple[CrossPart, ...]
    num_bins: int

    @property
    def columns_read(self) -> Mapping[str, ColumnType]:
        """Types of the columns that are crossed, by name."""
        return {part.column: part.column_type for part in self.parts}

    def open_kernel(self, folder: Path) -> IdKernel:
        """Returns a kernel of a list of `CrossValues`."""
        from ctr_pipeline.kernels.crosses import cross_ids

        del folder
        return lambda parts, out: cross_ids(parts, self.num_bins, self.missing_id, out)
