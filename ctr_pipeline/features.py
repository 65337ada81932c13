"""The vocabulary every package shares: columns, transforms, features.

A *feature* is a column, or a cross of several. Its `number` chain ends in one dense input, where a
missing value is 0; its `id` chain ends in one embedded *field*, where it has an id of its own. A
feature may have either or both. Transforms are named here as the YAML names them, with their
options; what they compute is in `preprocessing`, which statistics they need is in `analysis`.
"""

from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ctr_pipeline.specs.columns import ColumnType
from ctr_pipeline.transforms import AnyTransform
from ctr_pipeline.transforms.base import Transform


class SequenceSpec(BaseModel):
    """A text that is a list: how it is cut into elements, and how their embeddings are pooled.

    Empty elements are left out. Of more than `max_length` elements the first or the last are kept.
    With weights, an element is `value:weight`, or a value alone, of weight 1; a weight is a finite
    decimal number of at least 0.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    delimiter: str = Field(
        default="|", min_length=1, max_length=8, description="Text between two elements."
    )
    max_length: int = Field(
        default=20, ge=1, le=500, description="Elements of a row that count, at most."
    )
    keep: Literal["first", "last"] = Field(
        default="last", description="Which elements count where there are more than max_length."
    )
    pooling: Literal["mean", "sum", "sqrtn", "max"] = Field(
        default="mean",
        description="How a row's embeddings become one: weighted sum of them; the sum over the sum "
        "of weights; over the root of the sum of squared weights; or the largest of each number.",
    )
    weights: bool = Field(default=False, description="Whether elements carry weights: a:0.5|b:2.")
    weight_delimiter: str = Field(
        default=":",
        min_length=1,
        max_length=1,
        pattern=r"^[\x21-\x7e]$",
        description="ASCII character before the weight; the last one in an element counts.",
    )

    @model_validator(mode="after")
    def _different(self) -> "SequenceSpec":
        if self.weights and self.weight_delimiter in self.delimiter:
            raise ValueError("delimiter and weight_delimiter must differ")
        return self

    @property
    def weight_mark(self) -> str:
        """The weight's delimiter as a regular expression (RE2)."""
        return f"\\x{{{ord(self.weight_delimiter):x}}}"


WEIGHT_NUMBER = r"[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?|\.[0-9]+([eE][+-]?[0-9]+)?"
"""The regular expression (RE2) of a weight."""


class VectorSpec(BaseModel):
    """A text or a list of so many numbers, of which each is a dense input.

    Every number is a finite decimal one; a row has all of them or none, and then counts as missing.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    length: int = Field(ge=1, le=1024, description="Numbers of a row, exactly.")
    delimiter: str = Field(
        default="|", min_length=1, max_length=8, description="Text between two numbers."
    )

    @model_validator(mode="after")
    def _separates(self) -> "VectorSpec":
        if set(self.delimiter) & set("0123456789.+-eE"):
            raise ValueError("the delimiter may not hold what a number is written with")
        return self


VECTOR_NUMBER = rf"[+-]?({WEIGHT_NUMBER})"
"""The regular expression (RE2) of a number of a vector."""

ListSpec = SequenceSpec | VectorSpec
"""How a column whose texts are lists is cut."""


class FeatureSpec(BaseModel):
    """What becomes of one column, or of several columns crossed.

    Attributes:
        column: The column's name in the data; of a cross, the feature's own name.
        column_type: How the reader reads it.
        number: Chain that ends in a dense input; None if the column has none.
        id: Chain that ends in an embedded field; None if the column has none.
        sensitive: The column's values stay out of messages, logs and reports.
        reason: The one who decided, for the plan table and the report.
        cross: The columns that are crossed, as features of their own: a text column has no chains,
            a number column has the `id` chain by which it is crossed; None if it is no cross.
        sequence: How the text is cut into elements, each of which goes through the `id` chain;
            None if the whole text does.
        vector: How the text is cut into numbers, each of which goes through the `number` chain,
            which may be empty; None if the column is no vector.
        table: The embedding table that its ids are of, if another feature has ids of it or may;
            None: one of its own, of its own name.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    column: str
    column_type: ColumnType
    number: tuple[AnyTransform, ...] | None = None
    id: tuple[AnyTransform, ...] | None = None
    sensitive: bool = False
    reason: str = "config"
    cross: tuple["FeatureSpec", ...] | None = None
    sequence: SequenceSpec | None = None
    vector: VectorSpec | None = None
    table: str | None = None

    @property
    def parts(self) -> tuple["FeatureSpec", ...]:
        """The columns of the data that it reads, each as a feature of its own."""
        return self.cross or (self,)


def features_by_table(features: Sequence[FeatureSpec]) -> dict[str, tuple[FeatureSpec, ...]]:
    """The features with ids, by the name of the embedding table that their ids are of."""
    tables: dict[str, tuple[FeatureSpec, ...]] = {}
    for feature in features:
        if feature.id is not None:
            name = feature.table or feature.column
            tables[name] = (*tables.get(name, ()), feature)
    return tables


def cross_name(columns: Sequence[str]) -> str:
    """What a cross is called that has no name."""
    return " × ".join(columns)


def expression_key(column: str, chain: Sequence[Transform]) -> str:
    """Names the value of `column` after `chain`, as statistics of derived values are filed.

    The key is the column's name alone for an empty chain.
    """
    return " | ".join([column, *(transform.model_dump_json() for transform in chain)])
