"""Where things stand in a row's record.

A record is one contiguous run of float32 places: the header (training count and last-seen step,
int32 words), the values of all segments, the optimizer slots of all segments, padding up to a
multiple of 16 bytes.

Tables whose rows are made or trained otherwise are a *group* of their own. Records of all groups
have one length and values in the same places: where a segment has fewer values, the others stay
zero.

Axes: G groups, S segments, W values, D columns of a draw, R places of a record, T tables.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ctr_pipeline.embeddings import update_kernels as kernels
from ctr_pipeline.embeddings.arrays import Float32Array, UInt64Array
from ctr_pipeline.embeddings.initializers import NUM_DRAW_COLUMNS, plan_draw
from ctr_pipeline.embeddings.optimizers import rule_of, step_constants
from ctr_pipeline.specs.segment import SegmentSpec
from ctr_pipeline.specs.table import TableSpec

_ALIGNMENT_FLOATS = 4


@dataclass(frozen=True)
class RowLayout:
    """The places of a record.

    Attributes:
        groups: The segments of a row, in order; the first group's are those of most tables.
        width: Values in a row.
        num_slots: Float32 places of optimizer state in a row, of the group that has most; they
            follow the values.
        record_floats: Float32 places in a record, header and padding included.
        groups_T: uint64 [T], the group of each table; of one table where none were given.
        plan_GSP: uint64 [G, S, NUM_PLAN_COLUMNS], what the update kernels read.
        fresh_GR: float32 [G, R], records with zero values and initial slots.
        draws_GSD: float32 [G, S, NUM_DRAW_COLUMNS], what fresh values are drawn from.
    """

    groups: tuple[tuple[SegmentSpec, ...], ...]
    width: int
    num_slots: int
    record_floats: int
    groups_T: UInt64Array
    plan_GSP: UInt64Array
    fresh_GR: Float32Array
    draws_GSD: Float32Array

    @property
    def record_bytes(self) -> int:
        """Bytes of a record."""
        return self.record_floats * 4

    def constants(
        self, *, step: int, learning_rate_factor: float, num_examples: int
    ) -> Float32Array:
        """The constants of one step, float32 [G, S, NUM_CONSTANTS]."""
        if num_examples < 1:
            raise ValueError(f"num_examples {num_examples} is below 1")
        return np.stack(
            [
                [
                    step_constants(
                        segment.optimizer,
                        step=step,
                        learning_rate_factor=learning_rate_factor,
                        gradient_scale=1.0 / num_examples if segment.reduction == "mean" else 1.0,
                        l2_strength=segment.l2_strength,
                    )
                    for segment in group
                ]
                for group in self.groups
            ]
        )


def describe_segments(segments: Sequence[SegmentSpec]) -> list[dict[str, str | int]]:
    """What a file of records must agree on to be read with these segments."""
    return [
        {"name": segment.name, "dim": segment.dim, "optimizer": segment.optimizer.name}
        for segment in segments
    ]


def plan_layout(segments: Sequence[SegmentSpec], tables: Sequence[TableSpec] = ()) -> RowLayout:
    """Lays out the records of rows.

    Args:
        segments: What rows are made of, unless their table says otherwise.
        tables: The tables; with none there is one group.

    Raises:
        ValueError: No segments, two of one name, or a table whose segments
            have other names or more values.
    """
    names = [segment.name for segment in segments]
    if not names or len(set(names)) < len(names):
        raise ValueError(f"a row needs segments of distinct names, not {names}")
    for table in tables:
        _check_table(table, segments)
    # A dictionary keeps the order of first mention.
    places: dict[tuple[SegmentSpec, ...], int] = {tuple(segments): 0}
    for table in tables:
        places.setdefault(table.segments or tuple(segments), len(places))
    groups = tuple(places)
    width = sum(segment.dim for segment in segments)
    most_slots = max(
        sum(rule_of(segment.optimizer).num_slots(segment.dim) for segment in group)
        for group in groups
    )
    first_slot = kernels.HEADER_WORDS + width
    record_floats = -(-(first_slot + most_slots) // _ALIGNMENT_FLOATS) * _ALIGNMENT_FLOATS
    plan_GSP = np.zeros((len(groups), len(names), kernels.NUM_PLAN_COLUMNS), np.uint64)
    fresh_GR = np.zeros((len(groups), record_floats), np.float32)
    draws_GSD = np.zeros((len(groups), len(names), NUM_DRAW_COLUMNS), np.float32)
    for place, group in enumerate(groups):
        first, slot = 0, first_slot
        draws_GSD[place] = [plan_draw(segment.initializer, segment.dim) for segment in group]
        for plan, segment, widest in zip(plan_GSP[place], group, segments, strict=True):
            rule = rule_of(segment.optimizer)
            plan[kernels.PLAN_RULE] = rule.code
            plan[kernels.PLAN_FIRST] = first
            plan[kernels.PLAN_DIM] = segment.dim
            plan[kernels.PLAN_START] = kernels.HEADER_WORDS + first
            plan[kernels.PLAN_SLOTS] = slot
            plan[kernels.PLAN_COUNT_POWER] = segment.l2_count_power
            initial_slots = rule.initial_slots(segment.dim, segment.optimizer)
            fresh_GR[place, slot : slot + len(initial_slots)] = initial_slots
            first += widest.dim
            slot += len(initial_slots)
    return RowLayout(
        groups=groups,
        width=width,
        num_slots=most_slots,
        record_floats=record_floats,
        groups_T=np.array(
            [places[table.segments or tuple(segments)] for table in tables] or [0], np.uint64
        ),
        plan_GSP=plan_GSP,
        fresh_GR=fresh_GR,
        draws_GSD=draws_GSD,
    )


def _check_table(table: TableSpec, segments: Sequence[SegmentSpec]) -> None:
    if table.segments is None:
        return
    names = [segment.name for segment in segments]
    if [segment.name for segment in table.segments] != names:
        raise ValueError(f"table {table.name!r}: its segments are not {names}")
    for segment, widest in zip(table.segments, segments, strict=True):
        if segment.dim > widest.dim:
            raise ValueError(
                f"table {table.name!r}: segment {segment.name!r} has {segment.dim} values, and "
                f"rows have {widest.dim}"
            )
