"""`count_encode`."""

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from pydantic import Field

from ctr_pipeline.transforms.base import Fitting, TextKernel, TextStep, TextTransform

if TYPE_CHECKING:
    from ctr_pipeline.transforms.shared.value_tables import ValueTable


class CountEncodeStep(TextStep):
    """How often the text occurs in training, 0 for one that does not; missing stays missing.

    Attributes:
        file: Path of the table of counts below the run folder.
        min_count: Rarer values count 0.
        size: Values in the file.
    """

    name: Literal["count_encode"] = "count_encode"
    file: str
    min_count: int
    size: int

    def open_table(self, folder: Path) -> "ValueTable":
        """Opens the table of values and their counts; see `read_value_counts`."""
        from ctr_pipeline.transforms.shared.value_tables import read_value_counts

        found = read_value_counts(folder / self.file, size=self.size, min_count=self.min_count)
        return found.table(np.concatenate([found.counts.astype(np.float64), [0.0, np.nan]]))

    def open_kernel(self, folder: Path) -> TextKernel:
        """Returns the kernel, its table of counts loaded."""
        return self.open_table(folder).numbers_of


class CountEncode(TextTransform):
    """How many training rows have the value; 0 for a value they lack; missing stays missing.

    A number: `number: [count_encode, log]` gives `log(1 + count)`.
    """

    example: ClassVar[str] = "{columns: user_id, number: [{count_encode: {min_count: 2}}, log]}"
    name: Literal["count_encode"] = "count_encode"
    min_count: int = Field(
        default=1, ge=1, description="Values seen less often in training count 0 as well."
    )

    def fit(self, fitting: Fitting) -> TextStep:
        """Fits the table of counts."""
        table = fitting.value_table(self.min_count)
        return CountEncodeStep(file=table.file, size=table.size, min_count=self.min_count)
