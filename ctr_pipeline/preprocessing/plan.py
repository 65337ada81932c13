"""The preprocessing plan: every chain with its fitted parameters, on disk and in memory.

`plan` fits it from statistics; `encode` runs it in training, `build` turns it into layers.
"""

import hashlib
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from ctr_pipeline.durable import write_text
from ctr_pipeline.errors import PreprocessingError
from ctr_pipeline.features import ListSpec, SequenceSpec, VectorSpec
from ctr_pipeline.specs.columns import ColumnType
from ctr_pipeline.transforms import AnyIdStep, AnyNumberStep, AnyTextStep

PLAN_VERSION = 1
PLAN_FILE = "preprocessing.json"


class _Frozen(BaseModel):
    # Thresholds may be infinite, and JSON as pydantic writes it has no infinity otherwise.
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")


class NumberPlan(_Frozen):
    """One dense input.

    Attributes:
        name: The column's name; of a vector, with the place of the number: `v[3]`.
        column: The column.
        steps: Applied in order; at the end missing becomes 0 and the value float32.
        first: Makes a number of a text column, before the steps; None for a number column.
        vector: How a text is cut into numbers, of which this is one; None if it is no vector.
        place: Which of them, from 0.
    """

    name: str
    column: str
    steps: tuple[AnyNumberStep, ...]
    first: AnyTextStep | None = None
    vector: VectorSpec | None = None
    place: int | None = None

    @property
    def column_type(self) -> ColumnType:
        """How the column is read."""
        is_number = self.first is None and self.vector is None
        return ColumnType.NUMBER if is_number else ColumnType.TEXT


class FieldPlan(_Frozen):
    """One embedded field.

    Attributes:
        name: The feature's name.
        column: The column; of a cross, the feature's name.
        column_type: How it is read.
        transforms: Names of the transforms the user gave, for tables and reports.
        num_ids: Ids are in [0, num_ids), those of missing values and of padding included.
        step: The chain, fitted into one step from the raw value, from that after `first`, or from
            an element of a sequence.
        first: Makes a number of a text column, before the step; None: the step takes the column.
        sequence: How a text is cut into elements; None if it is one value.
        table: The embedding table that ids are of; None: that of the field's own name.
        prior_precision: Prior precision of the linear weight of an id, as far as the column alone
            tells: that of the m rows of the overall click rate p with which the rates of its values
            foretell other rows best (`LabelInformation`), m p (1 - p); None where that is not
            known.
    """

    name: str
    column: str
    column_type: ColumnType
    transforms: tuple[str, ...]
    num_ids: int
    step: AnyIdStep
    first: AnyTextStep | None = None
    sequence: SequenceSpec | None = None
    table: str | None = None
    prior_precision: float | None = None

    @property
    def table_name(self) -> str:
        """The name of the embedding table that ids are of."""
        return self.table or self.name

    @property
    def num_positions(self) -> int:
        """Ids of a row: 1, or the most elements of a sequence."""
        return 1 if self.sequence is None else self.sequence.max_length

    @property
    def padding_id(self) -> int:
        """The id in positions of a sequence that no element is in; its row changes no result."""
        if self.sequence is None:
            raise ValueError(f"field '{self.name}' is no sequence")
        return self.num_ids - 1

    @property
    def inputs(self) -> dict[str, ColumnType]:
        """The columns it reads, and how."""
        crossed = self.step.columns_read
        return {self.column: self.column_type} if crossed is None else dict(crossed)

    @property
    def missing_id(self) -> int:
        """The id of a missing value."""
        return self.step.missing_id


class TablePlan(_Frozen):
    """One embedding table.

    Attributes:
        name: Unique; that of its field, or of what several fields share.
        num_ids: Ids are in [0, num_ids); of several fields, those of the one that has most: a
            sequence has a padding id after all others.
        prior_precision: Prior precision of a linear weight, the least of its fields; None where
            one is not known.
    """

    name: str
    num_ids: int
    prior_precision: float | None = None


class PreprocessingPlan(_Frozen):
    """Everything that turns raw columns into ids [N, S] and numbers [N, D + C].

    An ordinary field has one *position* for an id, a sequence as many as elements count. A position
    of a sequence has a coefficient, by which its embedding is pooled with the others, 0 where no
    element is; coefficients stand after the numbers. Without sequences S = F and C = 0.

    Attributes:
        fields: In the order of axis F, sequences last; positions are in the same order.
        numbers: In the order of axis D.
    """

    version: int = PLAN_VERSION
    fields: tuple[FieldPlan, ...]
    numbers: tuple[NumberPlan, ...]

    @property
    def num_positions(self) -> int:
        """Ids of a row, S."""
        return sum(field.num_positions for field in self.fields)

    @property
    def sequences(self) -> tuple[FieldPlan, ...]:
        """The fields that are sequences, the last ones."""
        return tuple(field for field in self.fields if field.sequence is not None)

    @property
    def list_columns(self) -> dict[str, ListSpec]:
        """Columns whose texts are lists, and how they are cut."""
        return {
            **{one.column: one.sequence for one in self.fields if one.sequence is not None},
            **self.vectors,
        }

    @property
    def vectors(self) -> dict[str, VectorSpec]:
        """Columns whose texts are vectors, and how they are cut."""
        return {one.column: one.vector for one in self.numbers if one.vector is not None}

    @property
    def num_coefficients(self) -> int:
        """Coefficients of a row, C."""
        return sum(field.num_positions for field in self.sequences)

    @property
    def num_floats(self) -> int:
        """Numbers and coefficients of a row, D + C."""
        return len(self.numbers) + self.num_coefficients

    @property
    def position_tables(self) -> tuple[int, ...]:
        """The table of each position's ids; where no fields share one, field f has table f."""
        places = {table.name: place for place, table in enumerate(self.tables)}
        return tuple(
            places[field.table_name] for field in self.fields for _ in range(field.num_positions)
        )

    @property
    def tables(self) -> tuple[TablePlan, ...]:
        """The embedding tables, in the order of their first fields."""
        fields: dict[str, list[FieldPlan]] = {}
        for field in self.fields:
            fields.setdefault(field.table_name, []).append(field)
        return tuple(
            TablePlan(
                name=name,
                num_ids=max(field.num_ids for field in sharing),
                prior_precision=None
                if any(field.prior_precision is None for field in sharing)
                else min(field.prior_precision or 0.0 for field in sharing),
            )
            for name, sharing in fields.items()
        )

    @property
    def table_sizes(self) -> list[int]:
        """Ids of each embedding table, in the order of `tables`."""
        return [table.num_ids for table in self.tables]

    @property
    def table_features(self) -> tuple[tuple[str, ...], ...]:
        """The features whose ids each table holds rows of, in the order of `tables`."""
        return tuple(
            tuple(dict.fromkeys(one.column for one in self.fields if one.table_name == table.name))
            for table in self.tables
        )

    @property
    def has_table_a_position(self) -> bool:
        """Whether position s has table s, for every one."""
        return not self.sequences and len(self.tables) == len(self.fields)

    @property
    def inputs(self) -> dict[str, ColumnType]:
        """The columns it reads, fields first, and how."""
        inputs: dict[str, ColumnType] = {}
        for field in self.fields:
            inputs |= field.inputs
        return inputs | {number.column: number.column_type for number in self.numbers}

    @property
    def features(self) -> tuple[str, ...]:
        """The features it holds, fields first: of each, all its ids and numbers."""
        names = [*(field.column for field in self.fields), *(one.column for one in self.numbers)]
        return tuple(dict.fromkeys(names))

    @property
    def text_steps(self) -> dict[tuple[str, AnyTextStep], None]:
        """Columns and the steps that make numbers of them, each once, as an ordered set."""
        parts: tuple[NumberPlan | FieldPlan, ...] = (*self.numbers, *self.fields)
        return {(part.column, part.first): None for part in parts if part.first is not None}

    def places_of(self, feature: str) -> tuple[list[int], list[int]]:
        """Where a feature stands in encoded rows: among the ids, and among the floats."""
        positions: list[int] = []
        floats = [place for place, one in enumerate(self.numbers) if one.column == feature]
        position, place = 0, len(self.numbers)
        for field in self.fields:
            num_coefficients = 0 if field.sequence is None else field.num_positions
            if field.column == feature:
                positions += range(position, position + field.num_positions)
                floats += range(place, place + num_coefficients)
            position += field.num_positions
            place += num_coefficients
        return positions, floats

    def fingerprint(self) -> str:
        """Names everything that turns raw columns into ids and numbers."""
        return hashlib.sha256(self.model_dump_json().encode("utf-8")).hexdigest()

    def save(self, path: Path) -> None:
        """Writes the plan as JSON, durably."""
        write_text(path, self.model_dump_json(indent=1))


def load_plan(path: Path) -> PreprocessingPlan:
    """Reads a plan.

    Raises:
        PreprocessingError: The file is missing, damaged or of another version.
    """
    remedy = "Run 'ctrpipe train --resume' with the config of the run, which writes it again"
    try:
        plan = PreprocessingPlan.model_validate_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PreprocessingError(
            f"cannot be read ({error.strerror})", place=str(path), remedy=remedy
        ) from error
    except ValueError as error:
        raise PreprocessingError(
            "is damaged or of another version", place=str(path), remedy=remedy
        ) from error
    if plan.version != PLAN_VERSION:
        raise PreprocessingError(
            f"has version {plan.version}, this program reads {PLAN_VERSION}",
            place=str(path),
            remedy=remedy,
        )
    return plan


def raw_signature(plan: PreprocessingPlan) -> dict[str, Literal["string", "double"]]:
    """The raw columns the plan reads: text as string ('' = missing), numbers as double (NaN)."""
    signature: dict[str, Literal["string", "double"]] = {}
    for number in plan.numbers:
        signature[number.column] = "double" if number.column_type is ColumnType.NUMBER else "string"
    for field in plan.fields:
        for column, kind in field.inputs.items():
            signature[column] = "string" if kind is ColumnType.TEXT else "double"
    return signature
