"""One step's update of rows, as work on ranges of them that threads share.

Axes: P places of a batch, A leading values of a row, B the others, U distinct keys, W values.
"""

from collections.abc import Callable

from ctr_pipeline.embeddings import update_kernels
from ctr_pipeline.embeddings.arrays import Float32Array, Int32Array, Int64Array
from ctr_pipeline.embeddings.rows import RowStorage
from ctr_pipeline.embeddings.unique import PreparedBatch
from ctr_pipeline.kernels.compilation import read_only

RangeWork = Callable[[int, int], None]
"""Updates the rows of the keys from one number to another."""


class RowUpdate:
    """Applies each segment's L2 and optimizer to rows; the caller holds their lock meanwhile.

    Args:
        rows: All rows.
        step: Global step, from 1; corrects Adam's bias and becomes the rows' last-seen step.
        learning_rate_factor: The schedule's factor on every learning rate.
        num_examples: Divisor of segments whose reduction is `mean`.
    """

    def __init__(
        self, rows: RowStorage, *, step: int, learning_rate_factor: float, num_examples: int
    ) -> None:
        self._rows = rows
        constants_GSC = rows.layout.constants(
            step=step, learning_rate_factor=learning_rate_factor, num_examples=num_examples
        )
        self._rule = rows.layout.groups_T, rows.layout.plan_GSP, constants_GSC, step
        """What kernels are told of the segments and the step."""

    def by_occurrence(
        self,
        prepared: PreparedBatch,
        rows_U: Int32Array,
        leading_PA: Float32Array,
        trailing_PB: Float32Array,
    ) -> RangeWork:
        """Sums the gradients of the places of each key first.

        Args:
            prepared: The batch.
            rows_U: Row of each key; -1: none.
            leading_PA: Gradients with respect to the leading values.
            trailing_PB: Gradients with respect to the others.
        """

        def work(first: int, last: int) -> None:
            update_kernels.update_rows_by_occurrence(
                self._rows.records_NR,
                self._rows.headers_NR,
                prepared.keys_U,
                rows_U,
                prepared.offsets,
                prepared.occurrences,
                read_only(leading_PA),
                read_only(trailing_PB),
                *self._rule,
                first,
                last,
            )

        return work

    def by_sum(
        self,
        keys_U: Int64Array,
        rows_U: Int32Array,
        num_occurrences_U: Int32Array,
        sums_UW: Float32Array,
    ) -> RangeWork:
        """Takes gradients that are summed by key.

        Args:
            keys_U: Each once.
            rows_U: Row of each key; -1: none.
            num_occurrences_U: How often each key occurs in the batch.
            sums_UW: The sums.
        """

        def work(first: int, last: int) -> None:
            update_kernels.update_rows_by_sum(
                self._rows.records_NR,
                self._rows.headers_NR,
                keys_U,
                rows_U,
                num_occurrences_U,
                read_only(sums_UW),
                *self._rule,
                first,
                last,
            )

        return work
