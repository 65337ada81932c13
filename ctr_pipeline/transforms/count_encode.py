"""`count_encode`."""

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from pydantic import Field

from ctr_pipeline.transforms.base import (
    CountedText,
    Fitting,
    Needs,
    TextKernel,
    TextStep,
    TextTransform,
)

if TYPE_CHECKING:
    from sqlglot import exp

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

    @property
    def files(self) -> tuple[str, ...]:
        """The table of counts."""
        return (self.file,)

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
    has_sql: ClassVar[bool] = True
    name: Literal["count_encode"] = "count_encode"
    min_count: int = Field(
        default=1, ge=1, description="Values seen less often in training count 0 as well."
    )

    @property
    def needs(self) -> Needs:
        """The table of counts."""
        return Needs(table_min_count=self.min_count, words=("values with counts",))

    def sql_of_counts(self, text: CountedText) -> "exp.Expr":
        """The rows of the text."""
        from sqlglot import exp

        from ctr_pipeline.transforms.shared.sql import at_least, double

        return (
            exp.Case()
            .when(exp.Is(this=text.text, expression=exp.null()), exp.null())
            .when(at_least(text.num_rows, self.min_count), exp.cast(text.num_rows.copy(), "double"))
            .else_(double(0.0))
        )

    def fit(self, fitting: Fitting) -> TextStep:
        """Fits the table of counts."""
        table = fitting.value_table(self.min_count)
        return CountEncodeStep(file=table.file, size=table.size, min_count=self.min_count)
