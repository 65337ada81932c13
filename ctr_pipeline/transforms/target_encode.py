"""`target_encode`."""

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

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

DEFAULT_FOLDS = 5
"""Parts of the training rows; four fifths of the rows encode each row."""


class RowWeights(BaseModel):
    """How training rows are weighed.

    Attributes:
        column: The column of weights.
        mean: Mean weight of a row.
        missing: Weight of the training rows without a value.
        missing_clicks: Weight of the rows without a value that have label 1.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    column: str
    mean: float
    missing: float
    missing_clicks: float


class TargetEncodeStep(TextStep):
    """`(clicks + smoothing * base) / (rows + smoothing)` of the text's training rows.

    With weights, a row counts as its weight over the mean one, and so does a click.

    Attributes:
        file: Path of the table of counts below the run folder.
        min_count: Rarer values get the base.
        size: Values in the file.
        smoothing: Rows of the base rate added to those of each value.
        base: Click rate of all training rows, and of a text they lack.
        missing_rows: Training rows without a value.
        missing_clicks: Rows without a value that have label 1.
        folds: Parts of the training rows, each encoded from the others; None: a training row is
            encoded from those before it.
        weights: How rows are weighed; None weighs all alike.
    """

    name: Literal["target_encode"] = "target_encode"
    file: str
    min_count: int
    size: int
    smoothing: float
    base: float
    missing_rows: int
    missing_clicks: int
    folds: int | None
    weights: RowWeights | None = None

    @property
    def files(self) -> tuple[str, ...]:
        """The table of counts."""
        return (self.file,)

    def smoothed_rates(self, num_clicks: np.ndarray, num_rows: np.ndarray) -> np.ndarray:
        """`(clicks + smoothing * base) / (rows + smoothing)`, float64; the base where rows are 0.

        With weights, clicks and rows are what they weigh.
        """
        sizes, clicks = num_rows, num_clicks
        if self.weights is not None:
            sizes, clicks = sizes / self.weights.mean, clicks / self.weights.mean
        rates = (clicks + self.smoothing * self.base) / (sizes + self.smoothing)
        return np.where(num_rows == 0, self.base, rates)

    def open_table(self, folder: Path) -> "ValueTable":
        """Opens the final table, that of all training rows; see `read_value_counts`."""
        from ctr_pipeline.transforms.shared.value_tables import read_value_counts

        found = read_value_counts(
            folder / self.file,
            size=self.size,
            min_count=self.min_count,
            weighted=self.weights is not None,
        )
        missing, missing_clicks = float(self.missing_rows), float(self.missing_clicks)
        if self.weights is not None:
            missing, missing_clicks = self.weights.missing, self.weights.missing_clicks
        if self.missing_rows < self.min_count:
            missing, missing_clicks = 0.0, 0.0
        # A text that training lacks has no rows, so it gets the base.
        return found.table(
            self.smoothed_rates(
                np.concatenate([found.clicks, [0, missing_clicks]]),
                np.concatenate([found.sizes, [0, missing]]),
            )
        )

    def open_kernel(self, folder: Path) -> TextKernel:
        """Returns the kernel of the final table."""
        return self.open_table(folder).numbers_of


class TargetEncode(TextTransform):
    """The smoothed click rate of the value's training rows, of which no row sees its own label.

    `(clicks + smoothing * base) / (rows + smoothing)`, where `base` is the click rate of all
    training rows and what a value they lack becomes. Rows without a value are a value of their own.
    A training row is encoded from other rows only: from those of the other folds, or with
    `order: time` from those before it. Validation, test and new rows, and the exported model, take
    the final table, of all training rows; so export and trainer agree on every row but those that
    were trained on. See D. Micci-Barreca, "A preprocessing scheme for high-cardinality categorical
    attributes", SIGKDD Explorations 3 (2001), equation 3 with lambda = n / (n + smoothing); and for
    `order: time` L. Prokhorenkova et al., "CatBoost", NeurIPS 2018, section 3.2, with the order of
    the data in place of a random one.
    """

    example: ClassVar[str] = (
        "{columns: user_id, number: [{target_encode: {smoothing: 50, folds: 10}}, standardize]}"
    )
    reads_labels: ClassVar[bool] = True
    has_sql: ClassVar[bool] = True
    name: Literal["target_encode"] = "target_encode"
    smoothing: float = Field(
        default=20.0, gt=0, description="Rows of the base rate added to those of each value."
    )
    folds: int | None = Field(
        default=None,
        ge=2,
        le=100,
        description="Parts of the training rows, each encoded from the others; null: 5, or none "
        "with order: time.",
    )
    order: Literal["time"] | None = Field(
        default=None,
        description="time: encode a training row from the rows before it in the data, which must "
        "be in the order of time; null: by folds.",
    )
    min_count: int = Field(
        default=1, ge=1, description="Values seen less often in training get the base rate."
    )

    @model_validator(mode="after")
    def _one_way(self) -> "TargetEncode":
        if self.folds is not None and self.order is not None:
            raise ValueError("takes folds or order, not both")
        return self

    @property
    def needs(self) -> Needs:
        """The table of rows and clicks."""
        words = ("values with counts", "click rate of each value")
        return Needs(table_min_count=self.min_count, words=words)

    def sql_of_counts(self, text: CountedText) -> "exp.Expr":
        """The smoothed click rate of the text, which may be missing, by the final table."""
        from sqlglot import exp

        from ctr_pipeline.transforms.shared.sql import at_least, double

        of_base = exp.Mul(this=double(self.smoothing), expression=text.base.copy())
        clicks = exp.Add(this=text.clicks, expression=of_base)
        rows = exp.Add(this=text.rows, expression=double(self.smoothing))
        rate: exp.Expr = exp.Div(this=exp.Paren(this=clicks), expression=exp.Paren(this=rows))
        if text.weighs is not None:
            rate = exp.Case().when(text.weighs, rate).else_(text.base.copy())
        return exp.Case().when(at_least(text.num_rows, self.min_count), rate).else_(text.base)

    def fit(self, fitting: Fitting) -> TextStep:
        """Fits the table of rows and clicks."""
        table = fitting.value_table(self.min_count)
        statistics = fitting.statistics
        known = statistics.column(fitting.column)
        weights, base = None, statistics.label_rate
        if statistics.value_weights is not None:
            found = statistics.value_weights[fitting.column]
            base = found.clicks / found.total
            weights = RowWeights(
                column=found.column,
                mean=found.total / statistics.num_rows,
                missing=found.missing,
                missing_clicks=found.missing_clicks,
            )
        return TargetEncodeStep(
            file=table.file,
            size=table.size,
            min_count=self.min_count,
            smoothing=self.smoothing,
            base=base,
            missing_rows=known.num_missing,
            missing_clicks=round((known.missing_label_rate or 0.0) * known.num_missing),
            folds=None if self.order == "time" else self.folds or DEFAULT_FOLDS,
            weights=weights,
        )
