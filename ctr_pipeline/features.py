"""The vocabulary every package shares: columns, transforms, features.

A *feature* is a column, or a cross of several. Its `number` chain ends in one dense input, where a
missing value is 0; its `id` chain ends in one embedded *field*, where it has an id of its own. A
feature may have either or both. Transforms are named here as the YAML names them, with their
options; what they compute is in `preprocessing`, which statistics they need is in `analysis`.
"""

import math
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, ClassVar, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ctr_pipeline.datetime_formats import ISO, check_format, iso_seconds


class ColumnType(StrEnum):
    """What the reader makes of a column."""

    NUMBER = "number"
    TEXT = "text"


class TransformKind(StrEnum):
    """What a transform takes and gives."""

    NUMBER_TO_NUMBER = "number to number"
    NUMBER_TO_ID = "number to id"
    TEXT_TO_NUMBER = "text to number"
    TEXT_TO_ID = "text to id"

    @property
    def takes_text(self) -> bool:
        """Whether it reads the text of the column, and so stands first in its chain."""
        return self in {TransformKind.TEXT_TO_NUMBER, TransformKind.TEXT_TO_ID}

    @property
    def gives_id(self) -> bool:
        """Whether its result is an id, so that it ends an `id` chain."""
        return self in {TransformKind.NUMBER_TO_ID, TransformKind.TEXT_TO_ID}


class Transform(BaseModel):
    """One step of a chain, with its options. `name` is the YAML name.

    Attributes:
        kind: What it takes and gives.
        example: One entry of `features:` in YAML that uses it, for the reference page. Required.
        name: What the YAML calls it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    kind: ClassVar[TransformKind]
    example: ClassVar[str]
    name: str


class Log(Transform):
    """`log(1 + max(x, 0))`, natural; missing stays missing."""

    kind: ClassVar[TransformKind] = TransformKind.NUMBER_TO_NUMBER
    example: ClassVar[str] = "{columns: price, number: [log, standardize]}"
    name: Literal["log"] = "log"


class Standardize(Transform):
    """`(x - mean) / standard deviation` over the training rows, clipped; missing stays missing."""

    kind: ClassVar[TransformKind] = TransformKind.NUMBER_TO_NUMBER
    example: ClassVar[str] = "{columns: age, number: {standardize: {clip: 3.0}}}"
    name: Literal["standardize"] = "standardize"
    clip: float | None = Field(
        default=5.0, gt=0, description="Clip to ± this many deviations; null to leave as it is."
    )


class Normalize(Transform):
    """`(x - minimum) / (maximum - minimum)` over the training rows."""

    kind: ClassVar[TransformKind] = TransformKind.NUMBER_TO_NUMBER
    example: ClassVar[str] = "{columns: age, number: normalize}"
    name: Literal["normalize"] = "normalize"


class Clip(Transform):
    """Values below `minimum` become `minimum`, above `maximum` become `maximum`."""

    kind: ClassVar[TransformKind] = TransformKind.NUMBER_TO_NUMBER
    example: ClassVar[str] = (
        "{columns: price, number: [{clip: {minimum: 0, maximum: 1000}}, log, standardize]}"
    )
    name: Literal["clip"] = "clip"
    minimum: float | None = Field(default=None, description="Smallest value kept; null: no bound.")
    maximum: float | None = Field(default=None, description="Largest value kept; null: no bound.")

    @model_validator(mode="after")
    def _ordered(self) -> "Clip":
        if self.minimum is None and self.maximum is None:
            raise ValueError("needs a minimum, a maximum, or both")
        if self.minimum is not None and self.maximum is not None and self.minimum > self.maximum:
            raise ValueError(f"minimum {self.minimum} is above maximum {self.maximum}")
        return self


class Fill(Transform):
    """Missing values become `value`."""

    kind: ClassVar[TransformKind] = TransformKind.NUMBER_TO_NUMBER
    example: ClassVar[str] = "{columns: age, number: [{fill: {value: 30}}, standardize]}"
    name: Literal["fill"] = "fill"
    value: float = Field(description="What a missing value becomes.")


class LogRound(Transform):
    """`round(log(x))` as an id in [0, num_bins); half to even; outside that range: the default."""

    kind: ClassVar[TransformKind] = TransformKind.NUMBER_TO_ID
    example: ClassVar[str] = "{columns: price, id: {log_round: {num_bins: 16, base: 2}}}"
    name: Literal["log_round"] = "log_round"
    num_bins: int = Field(ge=1, description="Number of ids.")
    base: float | None = Field(default=None, gt=1, description="Base of the logarithm; null: e.")
    default_value: int = Field(default=0, ge=0, description="Id of x <= 0 and of out of range.")


class RoundIdentity(Transform):
    """`round(x)` as an id in [0, num_buckets); half to even; outside that range: the default."""

    kind: ClassVar[TransformKind] = TransformKind.NUMBER_TO_ID
    example: ClassVar[str] = "{columns: age, id: {round_identity: {num_buckets: 120}}}"
    name: Literal["round_identity"] = "round_identity"
    num_buckets: int = Field(ge=1, description="Number of ids.")
    default_value: int = Field(default=0, ge=0, description="Id of values out of range.")


class Bucketize(Transform):
    """The index of the left-closed interval that holds x; missing values have their own id.

    Exactly one of `boundaries`, `quantiles`, `equal_width` and `ln2` says where the intervals are
    cut. With quantiles, all have about equally many training rows: a value of at least half of
    them, such as a frequent 0, has an interval of its own, and the other rows are cut at their own
    quantiles. A column of at most so many values has an interval for each.
    """

    kind: ClassVar[TransformKind] = TransformKind.NUMBER_TO_ID
    example: ClassVar[str] = "{columns: I1..I13, id: {bucketize: {quantiles: 30}}}"
    name: Literal["bucketize"] = "bucketize"
    boundaries: tuple[float, ...] | None = Field(
        default=None, description="Cut points, strictly increasing."
    )
    quantiles: int | None = Field(
        default=None,
        ge=2,
        le=10_000,
        description="Cut into so many intervals of equally many training rows; an interval around "
        "a value of half the rows becomes up to three.",
    )
    equal_width: int | None = Field(
        default=None,
        ge=2,
        le=10_000,
        description="Cut into so many intervals of one width between the training rows' smallest "
        "and largest finite value; the outermost ones are open.",
    )
    ln2: bool = Field(
        default=False, description="floor(ln(x)^2) for x > 2, as the Criteo contest's winners did."
    )

    @model_validator(mode="after")
    def _one_way(self) -> "Bucketize":
        numbers = (self.boundaries, self.quantiles, self.equal_width)
        if sum(way is not None for way in numbers) + self.ln2 != 1:
            raise ValueError("needs exactly one of boundaries, quantiles, equal_width and ln2")
        if self.boundaries is not None:
            pairs = zip(self.boundaries, self.boundaries[1:], strict=False)
            if not self.boundaries:
                raise ValueError("boundaries is empty")
            for place, boundary in enumerate(self.boundaries):
                if math.isnan(boundary):
                    raise ValueError(f"boundaries[{place}] is NaN; a boundary must be a number")
            for low, high in pairs:
                if not low < high:
                    raise ValueError(
                        f"boundaries must be strictly increasing, and {high:g} follows {low:g}"
                    )
        return self


class Hash(Transform):
    """FarmHash Fingerprint64 of the value, modulo `buckets`; missing values have their own id.

    With several functions the value has an id by each, in a field of its own: values that share a
    bucket of one seldom share that of another (J. Serrà and A. Karatzoglou, "Getting deep
    recommenders fit: Bloom embeddings for sparse binary input/output networks", RecSys 2017).
    """

    kind: ClassVar[TransformKind] = TransformKind.TEXT_TO_ID
    example: ClassVar[str] = "{columns: user_id, id: {hash: {buckets: 1_000_000}}}"
    name: Literal["hash"] = "hash"
    buckets: int = Field(ge=1, le=2**40, description="Number of buckets.")
    functions: int = Field(default=1, ge=1, le=8, description="Hash functions, a field each.")


class Vocabulary(Transform):
    """The index of the value among the frequent values of the training rows.

    Rarer and unseen values share the out-of-vocabulary ids; missing values have their own id.
    """

    kind: ClassVar[TransformKind] = TransformKind.TEXT_TO_ID
    example: ClassVar[str] = "{columns: C1..C26, id: {vocabulary: {min_count: 10, oov_buckets: 4}}}"
    name: Literal["vocabulary"] = "vocabulary"
    min_count: int = Field(default=2, ge=1, description="Keep values seen this often in training.")
    max_size: int | None = Field(
        default=None, ge=1, description="Keep at most so many values, the most frequent; null: all."
    )
    oov_buckets: int = Field(default=1, ge=1, description="Ids shared by all other values.")


class CountEncode(Transform):
    """How many training rows have the value; 0 for a value they lack; missing stays missing.

    A number: `number: [count_encode, log]` gives `log(1 + count)`.
    """

    kind: ClassVar[TransformKind] = TransformKind.TEXT_TO_NUMBER
    example: ClassVar[str] = "{columns: user_id, number: [{count_encode: {min_count: 2}}, log]}"
    name: Literal["count_encode"] = "count_encode"
    min_count: int = Field(
        default=1, ge=1, description="Values seen less often in training count 0 as well."
    )


class TargetEncode(Transform):
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

    kind: ClassVar[TransformKind] = TransformKind.TEXT_TO_NUMBER
    example: ClassVar[str] = (
        "{columns: user_id, number: [{target_encode: {smoothing: 50, folds: 10}}, standardize]}"
    )
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


DatetimePart = Literal["minute", "hour", "hour_of_week", "weekday", "is_weekend", "day", "month"]
_FORMAT = (
    "iso, epoch_seconds (or _milliseconds, _microseconds, _nanoseconds), or a pattern of %Y, %m, "
    "%d, %H, %M, %S."
)


class Datetime(Transform):
    """Parts of a point in time as ids: one field for each part.

    Weeks begin on Monday, and is_weekend is 1 on Saturday and Sunday. Formats are
    `iso` (`2024-03-31`, `2024-03-31T18:05:59.250+02:00`; seconds, fraction and offset may be left
    out, a blank may stand for the T), whole numbers since 1970, or a pattern in terms of strptime
    such as `%d.%m.%Y %H:%M`, of the directives of fixed width. A text without an offset is in UTC.
    A text that tells no time in its format counts as missing, which has an id of its own; how many
    training rows do is said, and a column in which all do is refused. Parquet columns of dates and
    timestamps are read as `iso`.
    """

    kind: ClassVar[TransformKind] = TransformKind.TEXT_TO_ID
    example: ClassVar[str] = "{columns: seen_at, id: {datetime: {parts: [hour, weekday]}}}"
    name: Literal["datetime"] = "datetime"
    parts: tuple[DatetimePart, ...] = Field(
        min_length=1,
        description="minute, hour, hour_of_week, weekday, is_weekend, day (of the month), month.",
    )
    format: str = Field(default=ISO, description=_FORMAT)
    utc_offset_minutes: int = Field(
        default=0,
        ge=-840,
        le=840,
        description="By how much the clock that tells the parts is ahead of UTC.",
    )

    @model_validator(mode="after")
    def _sound(self) -> "Datetime":
        check_format(self.format)
        if len(set(self.parts)) < len(self.parts):
            raise ValueError("names a part twice")
        return self


class Age(Transform):
    """Days from a point in time to `at`, as a number; negative for what comes after it.

    Formats are those of `datetime`; a text that tells no time is missing. Every transform of a
    number may follow.
    """

    kind: ClassVar[TransformKind] = TransformKind.TEXT_TO_NUMBER
    example: ClassVar[str] = "{columns: joined_on, number: [age, log, standardize]}"
    name: Literal["age"] = "age"
    at: str | None = Field(
        default=None,
        description="Point in time in the format iso, in quotes, or YAML takes it for a date; "
        "null: the newest one of the column in the training rows.",
    )
    format: str = Field(default=ISO, description=_FORMAT)

    @model_validator(mode="after")
    def _sound(self) -> "Age":
        check_format(self.format)
        if self.at is not None:
            iso_seconds(self.at)
        return self


AnyTransform = Annotated[
    Log
    | Standardize
    | Normalize
    | Clip
    | Fill
    | LogRound
    | RoundIdentity
    | Bucketize
    | Hash
    | Vocabulary
    | CountEncode
    | TargetEncode
    | Datetime
    | Age,
    Field(discriminator="name"),
]

TRANSFORMS: dict[str, type[Transform]] = {
    transform.model_fields["name"].default: transform
    for transform in get_args(get_args(AnyTransform)[0])
}
"""Every transform by its YAML name."""


def is_none(value: object) -> bool:
    """Whether a field is left out where a model is written.

    Models without it are then written as before it came; fingerprints rest on that.
    """
    return value is None


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
        reason: Who decided, for the plan table and the report.
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
    cross: tuple["FeatureSpec", ...] | None = Field(default=None, exclude_if=is_none)
    sequence: SequenceSpec | None = Field(default=None, exclude_if=is_none)
    vector: VectorSpec | None = Field(default=None, exclude_if=is_none)
    table: str | None = Field(default=None, exclude_if=is_none)

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
