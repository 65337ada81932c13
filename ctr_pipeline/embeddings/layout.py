"""Where things stand in a row's record.

A record is one contiguous run of float32 places: the header (training count and last-seen step,
int32 words), the values of all segments, the optimizer slots of all segments, padding up to a
multiple of 16 bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ctr_pipeline.embeddings import update_kernels as kernels
from ctr_pipeline.embeddings.arrays import Float32Array, UInt64Array
from ctr_pipeline.embeddings.optimizers import rule_of, step_constants
from ctr_pipeline.embeddings.specs import SegmentSpec

_ALIGNMENT_FLOATS = 4


@dataclass(frozen=True)
class RowLayout:
    """The places of a record.

    Attributes:
        segments: The parts of a row, in order.
        width: Values in a row.
        num_slots: Float32 places of optimizer state in a row; they follow the values.
        record_floats: Float32 places in a record, header and padding included.
        plan_SP: uint64 [segments, NUM_PLAN_COLUMNS], what the update kernels read.
        fresh_record: float32 [record_floats], a record with zero values and initial slots.
        initial_range_W: float32 [width], the bound of each fresh value.
    """

    segments: tuple[SegmentSpec, ...]
    width: int
    num_slots: int
    record_floats: int
    plan_SP: UInt64Array
    fresh_record: Float32Array
    initial_range_W: Float32Array

    @property
    def record_bytes(self) -> int:
        """Bytes of a record."""
        return self.record_floats * 4

    def constants(
        self, *, step: int, learning_rate_factor: float, num_examples: int
    ) -> Float32Array:
        """The constants of one step for every segment, float32 [segments, NUM_CONSTANTS]."""
        if num_examples < 1:
            raise ValueError(f"num_examples {num_examples} is below 1")
        return np.stack(
            [
                step_constants(
                    segment.optimizer,
                    step=step,
                    learning_rate_factor=learning_rate_factor,
                    gradient_scale=1.0 / num_examples if segment.reduction == "mean" else 1.0,
                    l2_strength=segment.l2_strength,
                )
                for segment in self.segments
            ]
        )

    def describe(self) -> list[dict[str, str | int]]:
        """What a file of records must agree on to be read with this layout."""
        return [
            {"name": segment.name, "dim": segment.dim, "optimizer": segment.optimizer.name}
            for segment in self.segments
        ]


def plan_layout(segments: Sequence[SegmentSpec]) -> RowLayout:
    """Lays out the records of rows made of `segments`.

    Raises:
        ValueError: No segments, two of one name, or an unknown optimizer.
    """
    names = [segment.name for segment in segments]
    if not names or len(set(names)) < len(names):
        raise ValueError(f"a row needs segments of distinct names, not {names}")
    rules = [rule_of(segment.optimizer) for segment in segments]
    width = sum(segment.dim for segment in segments)
    plan_SP = np.zeros((len(segments), kernels.NUM_PLAN_COLUMNS), np.uint64)
    first, slot_start = 0, kernels.HEADER_WORDS + width
    initial_slots = []
    for plan, segment, rule in zip(plan_SP, segments, rules, strict=True):
        plan[kernels.PLAN_RULE] = rule.code
        plan[kernels.PLAN_FIRST] = first
        plan[kernels.PLAN_DIM] = segment.dim
        plan[kernels.PLAN_START] = kernels.HEADER_WORDS + first
        plan[kernels.PLAN_SLOTS] = slot_start
        plan[kernels.PLAN_COUNT_POWER] = segment.l2_count_power
        initial_slots.append(rule.initial_slots(segment.dim, segment.optimizer))
        first += segment.dim
        slot_start += rule.num_slots(segment.dim)
    record_floats = -(-slot_start // _ALIGNMENT_FLOATS) * _ALIGNMENT_FLOATS
    fresh_record = np.zeros(record_floats, np.float32)
    fresh_record[kernels.HEADER_WORDS + width : slot_start] = np.concatenate(initial_slots)
    return RowLayout(
        segments=tuple(segments),
        width=width,
        num_slots=slot_start - kernels.HEADER_WORDS - width,
        record_floats=record_floats,
        plan_SP=plan_SP,
        fresh_record=fresh_record,
        initial_range_W=np.repeat(
            np.array([segment.initial_range for segment in segments], np.float32),
            [segment.dim for segment in segments],
        ),
    )
