"""The YAML as typed, frozen models: every key, its meaning and its default.

`loader` reads files into these; nothing here touches the disk.
"""

import hashlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    WithJsonSchema,
    field_serializer,
    field_validator,
    model_validator,
)

from ctr_pipeline.config.key_facts import keys_set
from ctr_pipeline.config.kubernetes import KubernetesConfig
from ctr_pipeline.config.label_values import LabelValues, as_written, opposite_of
from ctr_pipeline.config.ranges import ALL_COLUMNS
from ctr_pipeline.datetime_formats import check_format
from ctr_pipeline.errors import StorageError
from ctr_pipeline.features import SequenceSpec, VectorSpec, cross_name
from ctr_pipeline.specs.course import RowLifecycle, Supervision, TrainingCourse, UpdateRule
from ctr_pipeline.specs.initializer import ZEROS, InitializerSpec
from ctr_pipeline.specs.launchers import LAUNCHERS
from ctr_pipeline.specs.learning_rate import GlobalBatch, LearningRateScaling
from ctr_pipeline.specs.model_kinds import AnyModel, DeepFMConfig, ModelConfig, member_model
from ctr_pipeline.specs.optimizer import OptimizerSpec
from ctr_pipeline.specs.section import (
    IS_PATH,
    MAY_CHANGE,
    MAY_CHANGE_FROM_STEP_ON,
    NO_MODEL,
    OF_FILES,
    SERVERS_ONLY,
    NotSearched,
    Section,
)
from ctr_pipeline.specs.segment import Reduction, SegmentSpec
from ctr_pipeline.specs.source_formats import SOURCE_FORMATS, is_query
from ctr_pipeline.specs.statistics_engines import STATISTICS_ENGINES
from ctr_pipeline.specs.validation_metric import ValidationMetric
from ctr_pipeline.storage.opening import require_address
from ctr_pipeline.transforms import AnyTransform
from ctr_pipeline.transforms.base import IdTransform, Transform, TransformKind

_ROWS = NotSearched(
    "all trials share the prepared rows, which this key changes; set it in the config itself"
)
_ONE_MODEL = NotSearched("a trial trains one model; make an ensemble of what the search finds")


class SplitConfig(Section):
    """How rows are divided into training, validation and test."""

    valid: float = Field(
        default=0.1, ge=0, lt=1, description="Share of the rows used for validation."
    )
    test: float = Field(default=0.1, ge=0, lt=1, description="Share of the rows used for the test.")
    by: Literal["order", "random", "hash", "time"] = Field(
        default="order",
        description="order: the first rows train and the last rows test; random: by train.seed; "
        "hash: by the hash of `column`, so that all rows of one value stay together; time: by "
        "the time in `column`: the latest rows test, those before them validate, and rows of "
        "one time stay together.",
    )
    column: str | None = Field(
        default=None,
        description="Column that by: hash and by: time split by.",
    )
    time_format: Annotated[str | None, OF_FILES] = Field(
        default=None,
        description="Format of the times for by: time: iso, epoch_seconds (or _milliseconds, "
        "_microseconds, _nanoseconds), or a pattern such as %d/%m/%Y %H:%M; null: iso, or any "
        "numbers.",
    )

    @field_validator("time_format")
    @classmethod
    def _is_format(cls, value: str | None) -> str | None:
        return None if value is None else check_format(value)

    @model_validator(mode="after")
    def _fits(self) -> "SplitConfig":
        if self.valid + self.test >= 1:
            raise ValueError(
                f"valid {self.valid} and test {self.test} together leave nothing to train on"
            )
        if self.column is None and self.by in {"hash", "time"}:
            raise ValueError(f"`column` is missing, and by: {self.by} needs it")
        if self.column is not None and self.by not in {"hash", "time"}:
            raise ValueError("`column` belongs to by: hash and by: time")
        if self.time_format is not None and self.by != "time":
            raise ValueError("`time_format` belongs to by: time")
        return self


class SampleConfig(Section):
    """Which of the training rows are trained on; validation and test rows are all kept."""

    negatives: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="Share of the training rows of label 0 that is used, drawn by train.seed. "
        "Predictions stay calibrated for all rows.",
    )


Paths = Annotated[
    str | tuple[str, ...],
    Field(
        description="A file, a list of files, or a glob; a folder of Parquet files in key=value "
        "folders; the same in an object store, such as s3://bucket/clicks/*.parquet; or tables: "
        "odps://project/table."
    ),
]


LabelText = Annotated[
    str,
    BeforeValidator(as_written),
    WithJsonSchema({"type": ["string", "number", "boolean"]}),
    Field(min_length=1),
]


if TYPE_CHECKING:
    DataFormat = str
else:
    DataFormat = Literal[("auto", *(key for one in reversed(SOURCE_FORMATS) for key in one.keys))]


class ConnectionConfig(Section):
    """A database that executes queries: MaxCompute, or one by its ADBC driver."""

    driver: str = Field(
        pattern=r"^[a-z][a-z0-9]*$",
        description="maxcompute, postgresql, sqlite, snowflake, flightsql, or NAME of an installed "
        "package adbc-driver-NAME.",
    )
    uri_env: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*$",
        description="The variable of the environment that holds the address of the database, with "
        "user and password if need be; null for maxcompute, which has variables of its own.",
    )

    @model_validator(mode="after")
    def _has_address(self) -> "ConnectionConfig":
        is_maxcompute = self.driver == "maxcompute"
        if is_maxcompute and self.uri_env is not None:
            raise ValueError(
                "`uri_env` is for ADBC drivers; MaxCompute is found by ODPS_PROJECT, ODPS_ENDPOINT "
                "and the keys in the environment"
            )
        if not is_maxcompute and self.uri_env is None:
            raise ValueError(
                "`uri_env` is missing: name the variable of the environment that holds the address "
                "of the database"
            )
        return self


class KeyValueConfig(Section):
    """A column of texts such as `age:31,price:2.5`, each key of which becomes a column."""

    column: str = Field(min_length=1, description="The column of texts.")
    pairs: str = Field(default=",", min_length=1, description="What stands between pairs.")
    value: str = Field(
        default=":", min_length=1, description="What stands between a key and its value."
    )
    keys: Annotated[tuple[str, ...] | None, MAY_CHANGE] = Field(
        default=None,
        min_length=1,
        description="The keys that become columns; null: those in the first rows.",
    )

    @model_validator(mode="after")
    def _can_be_cut(self) -> "KeyValueConfig":
        if self.pairs in self.value or self.value in self.pairs:
            raise ValueError(
                f"pairs '{self.pairs}' and value '{self.value}' cannot be told apart; a text is "
                "first cut into pairs, and each pair at its first separator of the value"
            )
        for key in self.keys or ():
            if not key or key != key.strip() or self.pairs in key or self.value in key:
                raise ValueError(f"'{key}' can be no key: it is cut at separators and trimmed")
        if len(set(self.keys or ())) < len(self.keys or ()):
            raise ValueError("keys are named twice")
        return self


class DataConfig(Section):
    """Where the rows are and how they are read."""

    train: Annotated[Paths | None, IS_PATH] = Field(
        default=None,
        description="Rows to train on: a file, a list, a glob, an address or a table; or `query`.",
    )
    query: str | None = Field(
        default=None,
        min_length=1,
        description="A SELECT whose rows are trained on, instead of `train`: in DuckDB's SQL, over "
        "files, object stores and the databases of `attach`.",
    )
    attach: Annotated[dict[str, str], IS_PATH] = Field(
        default={},
        description="DuckDB databases by the name that queries give them, such as "
        "{shop: data/shop.duckdb} for FROM shop.clicks; opened read-only.",
    )
    connection: ConnectionConfig | None = Field(
        default=None,
        description="The database that executes queries; null: DuckDB does, here.",
    )
    valid: Annotated[Paths | None, IS_PATH] = Field(
        default=None, description="Validation rows, instead of data.split.valid."
    )
    test: Annotated[Paths | None, IS_PATH] = Field(
        default=None, description="Test rows, instead of data.split.test."
    )
    format: Annotated[DataFormat, OF_FILES] = Field(
        default="auto",
        description="File format; auto: from the first bytes and the ending of the file.",
    )
    record: Annotated[Literal["auto", "line", "example"], OF_FILES] = Field(
        default="auto",
        description="Content of a RecordIO record; line: a row of delimited text; example: a "
        "tf.train.Example with one value per feature; auto: from the first record.",
    )
    columns: Annotated[tuple[str, ...] | None, OF_FILES] = Field(
        default=None,
        min_length=2,
        description="Column names of a file without a header line, in order; I1..I13 is a range.",
    )
    key_value: KeyValueConfig | None = Field(
        default=None,
        description="A column of key-value pairs that become columns in its place.",
    )
    delimiter: Annotated[str | None, OF_FILES] = Field(
        default=None,
        min_length=1,
        max_length=1,
        description="Field separator, `tab` for a tab; null: that of the format.",
    )
    quote: Annotated[str | None, OF_FILES] = Field(
        default='"',
        max_length=1,
        description="Quote character; null: no character quotes.",
    )
    escape: Annotated[str | None, OF_FILES] = Field(
        default=None,
        max_length=1,
        description="The character after it is one as any other, as in Spark's \\\" within quotes; "
        "null: a quote within quotes is doubled.",
    )
    skip_lines: Annotated[int, OF_FILES] = Field(
        default=0,
        ge=0,
        le=1000,
        description="Lines at the start of each file of delimited text that are no rows, such as a "
        "title; the line after them holds the names, or the first row with `columns`.",
    )
    label: str = Field(
        default="label", description="The column to predict, 0 or 1 unless `positive` is given."
    )
    positive: Annotated[LabelText | None, OF_FILES] = Field(
        default=None,
        description="The value that means label 1, if labels are not 0 and 1: 'True', yes, or 1 "
        "(with -1). Case is ignored.",
    )
    negative: Annotated[LabelText | None, OF_FILES] = Field(
        default=None,
        description="The value that means label 0; null: the opposite of `positive`, if that is "
        "true, yes, on, t, y or 1.",
    )
    weight: str | None = Field(
        default=None,
        description="Column of row weights, 0 or more, for loss and metrics; null: all rows "
        "count alike.",
    )
    split: SplitConfig = Field(
        default=SplitConfig(),
        description="How one set of rows is split into training, validation and test rows.",
    )
    sample: SampleConfig = Field(
        default=SampleConfig(), description="Which training rows are used."
    )
    missing_values: Annotated[tuple[str, ...], OF_FILES] = Field(
        default=("",),
        description="Texts that mean 'missing'; the empty text always does. A number that is "
        "listed is missing however it is written, in columns of numbers too.",
    )
    bad_rows: Annotated[Literal["fail", "skip"], OF_FILES] = Field(
        default="fail",
        description="fail: stop at the first bad row; skip: leave bad rows out and count them.",
    )
    max_bad_fraction: Annotated[float, OF_FILES] = Field(
        default=0.01,
        ge=0,
        le=1,
        description="With bad_rows: skip, stop if more than this share of rows is bad.",
    )
    key_columns: tuple[str, ...] = Field(
        default=(), description="Columns that are copied into predictions.parquet."
    )

    @property
    def training_rows(self) -> Paths:
        """What `train` or `query` names."""
        # One of them is there, as `_distinct` sees to.
        return (self.query or "") if self.train is None else self.train

    @property
    def training_key(self) -> str:
        """The key that names them, for messages."""
        return "data.train" if self.query is None else "data.query"

    @property
    def label_values(self) -> LabelValues | None:
        """What labels are written as; None: as 0 and 1."""
        if self.positive is None:
            return None
        negative = opposite_of(self.positive) if self.negative is None else self.negative
        return LabelValues(self.positive, negative or "")

    @field_validator("delimiter", mode="before")
    @classmethod
    def _is_tab(cls, value: Any) -> Any:
        return "\t" if value in ("\\t", "tab") else value

    @field_validator("query")
    @classmethod
    def _reads(cls, value: str | None) -> str | None:
        if value is not None and not is_query(value):
            word = next(iter(value.split(maxsplit=1)), "")
            raise ValueError(f"begins with '{word}', and a source only reads: write a SELECT")
        return value

    @model_validator(mode="after")
    def _distinct(self) -> "DataConfig":
        if (self.train is None) == (self.query is None):
            raise ValueError(
                "`train` or `query` is missing: name the rows to train on"
                if self.train is None
                else "takes `train` or `query`, not both"
            )
        if self.connection is not None and self.query is None:
            raise ValueError("`connection` belongs to `query`: write a SELECT")
        if self.connection is not None and self.attach:
            raise ValueError("`attach` is DuckDB's, and `connection` names another database")
        if self.delimiter is not None and self.delimiter == self.quote:
            raise ValueError("delimiter and quote are the same character")
        if self.escape is not None and self.escape in {self.delimiter, self.quote}:
            raise ValueError("escape is the same character as delimiter or quote")
        if self.record != "auto" and self.format not in {"auto", "recordio"}:
            raise ValueError(f"`record` belongs to format: recordio, not {self.format}")
        return self


def _one_transform(item: Any) -> Any:
    """`log` and `{bucketize: {quantiles: 30}}` as the mapping that the models take."""
    if isinstance(item, str):
        return {"name": item}
    if isinstance(item, dict) and len(item) == 1 and "name" not in item:
        ((name, options),) = item.items()
        if options is None:
            return {"name": name}
        if isinstance(options, dict):
            return {"name": name, **options}
    return item


class CountScaledL2(Section):
    """L2 of a row whose id occurs n_b times in the batch and count times in training.

    Adds strength * n_b / count**count_power * w to the batch's summed gradient of the row.
    """

    strength: float = Field(default=0.0, ge=0, description="Strength of the penalty.")
    count_power: Literal[0, 1, 2] = Field(
        default=1,
        description="Power of an id's count that divides the strength. 0: the same for all ids; "
        "1 or 2: stronger for rare ids.",
    )


class SegmentConfig(Section):
    """How one part of an embedding row (the linear weight, the vector) is trained."""

    optimizer: OptimizerSpec = Field(description="Optimizer of this part.")
    reduction: Reduction = Field(
        description="Whether the gradient is summed or averaged over the batch."
    )
    l2: CountScaledL2 = Field(default=CountScaledL2(), description="L2 penalty.")
    initializer: InitializerSpec = Field(default=ZEROS, description="Values of new rows.")

    def to_spec(self, name: str, dim: int) -> SegmentSpec:
        """As the store and the servers take it, for a part of `dim` values."""
        return SegmentSpec(
            name=name,
            dim=dim,
            optimizer=self.optimizer,
            reduction=self.reduction,
            l2_strength=self.l2.strength,
            l2_count_power=self.l2.count_power,
            initializer=self.initializer,
        )


class L2Override(Section):
    """The L2 penalty of a feature's embeddings where it differs from train.embeddings."""

    strength: float | None = Field(
        default=None,
        ge=0,
        description="Strength of the penalty; null: that of train.embeddings.",
    )
    count_power: Literal[0, 1, 2] | None = Field(
        default=None,
        description="Power of an id's count that divides the strength. 0: the same for all ids; "
        "1 or 2: stronger for rare ids; null: that of train.embeddings.",
    )


class SegmentOverride(Section):
    """How a feature's linear weights or vectors train, where that differs from train.embeddings."""

    optimizer: OptimizerSpec | None = Field(
        default=None, description="Optimizer; null: that of train.embeddings."
    )
    reduction: Reduction | None = Field(
        default=None,
        description="Whether the gradient is summed or averaged over the batch; null: that of "
        "train.embeddings.",
    )
    l2: L2Override | None = Field(
        default=None, description="L2 penalty; null: that of train.embeddings."
    )
    initializer: InitializerSpec | None = Field(
        default=None, description="Values of new rows; null: that of train.embeddings."
    )


class EmbeddingEntry(Section):
    """The embeddings of a feature where they differ from train.embeddings."""

    share: str | None = Field(
        default=None,
        min_length=1,
        description="Name of the embedding table to share: another feature, or a new name that "
        "several entries give. Their `id` must be the same; a vocabulary then holds the values "
        "of all of them.",
    )
    dimension: Annotated[int, Field(ge=1, le=1024)] | Literal["auto"] | None = Field(
        default=None,
        description="Length of the vectors, at most model.embedding_dim; a trained matrix "
        "projects them to model.embedding_dim. auto: the fourth root of the number of ids, "
        "rounded up; null: model.embedding_dim.",
    )
    linear: SegmentOverride | None = Field(
        default=None,
        description="Overrides train.embeddings.linear for these ids.",
    )
    vector: SegmentOverride | None = Field(
        default=None,
        description="Overrides train.embeddings.vector for these ids.",
    )

    @field_validator("dimension", mode="before")
    @classmethod
    def _is_dimension(cls, value: Any) -> Any:
        is_number = isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 1024
        if value is not None and value != "auto" and not is_number:
            raise ValueError(f"expected a whole number from 1 to 1024, or auto, found {value!r}")
        return value

    @model_validator(mode="after")
    def _says_something(self) -> "EmbeddingEntry":
        if not self.model_fields_set:
            raise ValueError("says nothing; leave the key out instead")
        return self


def _takes_cross(transform: Transform) -> bool:
    return isinstance(transform, IdTransform) and transform.takes_cross


_CROSS_NEEDS = "a cross needs id: {hash: {buckets: N}}, and nothing else in it"
_SEQUENCE_NEEDS = "a sequence needs one id transform of texts: vocabulary or hash"


class FeatureEntry(Section):
    """What becomes of one column, of several alike, or of several crossed.

    Entries that name the same feature are merged key by key (`config.merging`), so one may say less
    than a feature needs.
    """

    columns: str | tuple[str, ...] = Field(
        default=(),
        description="One column, a list, a range such as I1..I13, or '*' for all columns, for "
        "which the statistics decide whatever no entry says. The entry `auto` is short for "
        "{columns: '*'}.",
    )
    cross: tuple[str, ...] | None = Field(
        default=None,
        description="Columns that form one field together, with id: {hash: {buckets: N}}; texts "
        "by their value, numbers by the id of their own entry. Instead of `columns`.",
    )
    name: str | None = Field(
        default=None,
        min_length=1,
        description="Name of a cross; null: the names of its columns, joined by ×.",
    )
    sequence: SequenceSpec | None = Field(
        default=None,
        description="The columns hold lists: delimited texts, or list columns of Parquet. `id` "
        "applies to each element; {} takes every default.",
    )
    vector: VectorSpec | None = Field(
        default=None,
        description="The columns hold vectors: texts of `length` numbers, or list columns of "
        "Parquet. Each number becomes a dense input, after the chain in `number`, if given.",
    )
    number: tuple[AnyTransform, ...] | None = Field(
        default=None, description="Chain of transforms that ends in a dense input."
    )
    id: tuple[AnyTransform, ...] | None = Field(
        default=None, description="Chain of transforms that ends in an embedded field."
    )
    embedding: EmbeddingEntry | None = Field(
        default=None,
        description="Overrides for the embeddings of these ids: a shared table, the length of "
        "vectors, how rows are trained. A later entry replaces all of it.",
    )
    type: Literal["auto", "numeric", "categorical"] = Field(
        default="auto",
        description="For a column without number and id: the type by which its transforms are "
        "decided.",
    )
    sensitive: bool = Field(
        default=False,
        description="Keep the values of these columns out of messages, logs and reports.",
    )

    @field_validator("number", "id", mode="before")
    @classmethod
    def _as_chain(cls, value: Any) -> Any:
        if value is None:
            return None
        items = value if isinstance(value, list | tuple) else [value]
        return tuple(_one_transform(item) for item in items)

    @model_validator(mode="after")
    def _chains_not_empty(self) -> "FeatureEntry":
        if self.number == () or self.id == ():
            raise ValueError("an empty chain; leave the key out instead")
        return self

    @model_validator(mode="after")
    def _columns_or_cross(self) -> "FeatureEntry":
        if not self.columns and self.cross is None:
            raise ValueError("needs columns, or the columns of a cross")
        if self.cross is None:
            if self.name is not None:
                raise ValueError("`name` belongs to a cross; other features have their column's")
            return self
        if self.columns:
            raise ValueError("columns and cross in one entry; a cross is an entry of its own")
        if len(self.cross) < 2 or len(set(self.cross)) < len(self.cross):
            raise ValueError("cross needs two or more different columns")
        if self.number is not None or self.type != "auto":
            raise ValueError("a cross has an id alone; leave number and type out")
        if self.id is not None and not (len(self.id) == 1 and _takes_cross(self.id[0])):
            raise ValueError(_CROSS_NEEDS)
        return self

    @model_validator(mode="after")
    def _sequence_of_texts(self) -> "FeatureEntry":
        if self.sequence is None:
            return self
        if self.cross is not None or self.number is not None or self.type != "auto":
            raise ValueError("a sequence has columns and an id alone; leave the other keys out")
        if self.id is not None and (
            len(self.id) != 1 or self.id[0].kind is not TransformKind.TEXT_TO_ID
        ):
            raise ValueError(_SEQUENCE_NEEDS)
        return self

    @model_validator(mode="after")
    def _vector_of_numbers(self) -> "FeatureEntry":
        if self.vector is None:
            return self
        others = (self.cross, self.sequence, self.id)
        if any(other is not None for other in others) or self.type != "auto":
            raise ValueError("a vector has columns and a number alone; leave the other keys out")
        for transform in self.number or ():
            if transform.kind is not TransformKind.NUMBER_TO_NUMBER:
                raise ValueError(
                    f"'{transform.name}' does not make a number of a number, and `number` of a "
                    "vector holds nothing else"
                )
        return self

    @property
    def lacking(self) -> str | None:
        """What all entries of a feature together must still say, a sentence; None if nothing."""
        if self.id is not None:
            return None
        if self.cross is not None:
            return _CROSS_NEEDS
        return None if self.sequence is None else _SEQUENCE_NEEDS

    @property
    def names_all(self) -> bool:
        """Whether it is about every column."""
        return self.columns in (ALL_COLUMNS, (ALL_COLUMNS,))

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the features it describes: its columns, or the cross."""
        if self.cross is not None:
            return (self.name or cross_name(self.cross),)
        return (self.columns,) if isinstance(self.columns, str) else self.columns


class EmbeddingTraining(RowLifecycle):
    """Training of embedding rows: the linear weight and the vector."""

    linear: SegmentConfig = Field(
        default=SegmentConfig(
            optimizer=OptimizerSpec(name="adagrad", learning_rate=0.03),
            reduction="sum",
            l2=CountScaledL2(strength=10.0, count_power=1),
        ),
        description="The weight of each id in the linear term.",
    )
    vector: SegmentConfig = Field(
        default=SegmentConfig(
            optimizer=OptimizerSpec(name="adam", learning_rate=3e-4),
            reduction="mean",
            l2=CountScaledL2(strength=1e5, count_power=2),
            initializer=InitializerSpec(name="uniform", scale=0.0173),
        ),
        description="The embedding of each id.",
    )
    shrink_by_column: bool = Field(
        default=True,
        description="Raise linear.l2.strength, where it is above 0 and its count_power is 1, in "
        "columns that tell little about the click: up to what makes their click rates foretell "
        "rows best that these were not made from.",
    )


class EarlyStopping(Section):
    """When to stop before the last epoch."""

    metric: ValidationMetric = Field(
        default="logloss", description="Validation metric that is watched."
    )
    tolerance: float = Field(
        default=0.0015, ge=0, description="Stop when the metric is this much worse than its best."
    )
    patience: int = Field(
        default=2, ge=1, description="Stop after this many epochs without a new best."
    )


class EarlierRun(Section):
    """A finished run whose parameters, transforms and vocabularies a new one begins with."""

    run: Annotated[str, IS_PATH] = Field(min_length=1, description="Run folder of the earlier run.")
    checkpoint: Literal["best", "last"] = Field(
        default="best",
        description="best: its best epoch; last: its newest checkpoint.",
    )


class TrainConfig(TrainingCourse):
    """Training."""

    optimizer: OptimizerSpec = Field(
        default=OptimizerSpec(name="adam", learning_rate=1e-3),
        description="Optimizer of dense parameters.",
    )
    embeddings: EmbeddingTraining = Field(
        default=EmbeddingTraining(), description="Training of embedding rows."
    )
    scale_learning_rate: Annotated[LearningRateScaling, MAY_CHANGE_FROM_STEP_ON] = Field(
        default="none",
        description="With runtime.strategy: allreduce, the factor on every learning rate in a step "
        "of N batches: none: 1; linear: N; sqrt: the square root of N. Otherwise a step is of one.",
    )
    global_batch: GlobalBatch = Field(
        default="growing",
        description="With runtime.strategy: allreduce, the rows of a step. growing: "
        "train.batch_size times the workers that are there; fixed: times runtime.workers.max, "
        "whoever is there.",
    )
    early_stopping: Annotated[EarlyStopping | None, MAY_CHANGE] = Field(
        default=EarlyStopping(), description="When to stop early; null: never."
    )
    refit: Annotated[
        bool,
        MAY_CHANGE,
        NotSearched("what is best is told by the validation rows; set it in the config itself"),
    ] = Field(
        default=False,
        description="Train once more from the start on training and validation rows together, "
        "for as many epochs as were best. That model is tested and exported. Transforms stay "
        "those of the training rows. Needs test rows, and one process.",
    )
    precision: Annotated[Literal["float32", "bfloat16", "auto"], NO_MODEL] = Field(
        default="float32",
        description="Precision of the gradients of the dense part. bfloat16 needs a processor "
        "with AMX or AVX512-BF16; auto: bfloat16 if available, else float32. Parameters, loss, "
        "scores and the export are always float32.",
    )
    deterministic: Annotated[bool, NO_MODEL] = Field(
        default=False,
        description="Identical bits on every run on the same machine. Costs nothing measurable "
        "in one process; in several processes, workers wait for each update.",
    )
    ensemble: Annotated[int, _ONE_MODEL] = Field(
        default=1,
        ge=1,
        le=100,
        description="Number of models that are trained one after another, with consecutive "
        "seeds, and exported as one model whose logit is the mean of theirs.",
    )
    ensemble_models: Annotated[tuple[AnyModel, ...] | None, _ONE_MODEL] = Field(
        default=None,
        min_length=1,
        description="Architectures of the ensemble's models, in turn: names, or sections as "
        "`model`, which has the keys that they leave out; null: all are as `model`.",
    )
    init_from: Annotated[EarlierRun | str | None, IS_PATH, _ROWS] = Field(
        default=None,
        description="Run folder of an earlier run with the same features and model, from which "
        "training continues with new rows. {run: FOLDER, checkpoint: last} takes its last "
        "checkpoint instead of the best. Transforms stay as they are; vocabularies get the new "
        "values.",
    )

    @property
    def earlier_run(self) -> EarlierRun | None:
        """The run that training begins from; None: from the start."""
        return EarlierRun(run=self.init_from) if isinstance(self.init_from, str) else self.init_from

    @field_validator("ensemble_models", mode="before")
    @classmethod
    def _named_alone(cls, value: Any) -> Any:
        if not isinstance(value, list | tuple):
            return value
        return tuple({"name": one} if isinstance(one, str) else one for one in value)

    @field_serializer("ensemble_models")
    def _as_given(self, entries: tuple[ModelConfig, ...] | None) -> list[Any] | None:
        """What an entry leaves out is as in `model`, also once that is changed."""
        if entries is None:
            return None
        given = [one.model_dump(include=one.model_fields_set) for one in entries]
        return [one["name"] if len(one) == 1 else one for one in given]

    @field_validator("init_from")
    @classmethod
    def _is_named(cls, value: EarlierRun | str | None) -> EarlierRun | str | None:
        if value == "":
            raise ValueError("an empty text names no run folder")
        return value


class EvaluationConfig(Section):
    """What is measured on validation and test rows."""

    gauc_column: str | None = Field(
        default=None, description="Column that groups rows for GAUC, such as user_id."
    )
    group_by: tuple[str, ...] = Field(
        default=(),
        description="Columns, such as country: AUC, logloss and calibration are also measured "
        "for each of their 20 most frequent values, and for all other values together.",
    )
    calibration_bins: int = Field(
        default=20, ge=2, le=1000, description="Number of calibration bins, of equally many rows."
    )

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that are needed to measure, features or not; each once."""
        gauc = [] if self.gauc_column is None else [self.gauc_column]
        return tuple(dict.fromkeys([*gauc, *self.group_by]))


class ReportConfig(Section):
    """What the report shows beyond the default."""

    importance: bool | Literal["auto"] = Field(
        default="auto",
        description="Permutation importance per feature; auto: if it takes at most 5 seconds or "
        "a tenth of the training time.",
    )
    importance_rows: int = Field(
        default=20_000,
        ge=100,
        description="Largest number of test rows on which importance is measured.",
    )
    importance_repeats: int = Field(
        default=3, ge=1, le=100, description="Shuffles per feature; the report shows their spread."
    )


class ExportConfig(Section):
    """The servable model."""

    model_version: int = Field(default=1, ge=1, description="Number of the version folder.")
    parity_rows: int = Field(
        default=1000,
        ge=1,
        description="Number of rows that prove that the export scores as the trainer does.",
    )


_SPARK_MASTER = re.compile(r"local(\[(\d+|\*)\])?|yarn|(spark|k8s)://\S+")
_SPARK_SECRET = re.compile(r"(?i)access.?(id|key)|secret|password|token|credential")
SPARK_FIXED = (
    "spark.master",
    "spark.sql.ansi.enabled",
    "spark.sql.variable.substitute",
    "spark.sql.caseSensitive",
    "spark.sql.parser.escapedStringLiterals",
    "spark.sql.catalogImplementation",
    "spark.sql.files.ignoreCorruptFiles",
    "spark.sql.files.ignoreMissingFiles",
)
"""Settings that are not the user's: results depend on them."""


if TYPE_CHECKING:
    StatisticsEngineName = str
else:
    StatisticsEngineName = Literal[("auto", *STATISTICS_ENGINES)]


class AnalysisConfig(Section):
    """Where the statistics of the training rows are computed."""

    engine: StatisticsEngineName = Field(
        default="auto",
        description="; ".join(
            [
                "auto: on this machine, and in MaxCompute for its tables",
                *(f"{kind.name}: {kind.summary}" for kind in STATISTICS_ENGINES.values()),
            ]
        )
        + ".",
    )
    master: str = Field(
        default="local[2]",
        description="Spark master: local[2] runs Spark on this machine with two threads; "
        "spark://host:7077, yarn or k8s://host:443 name a cluster, whose machines must see the "
        "data files at the same paths.",
    )
    conf: dict[str, str | int | float | bool] = Field(
        default={}, description="Settings of Spark, such as spark.executor.memory: 4g."
    )
    start_seconds: float = Field(
        default=120.0,
        gt=0,
        description="Seconds within which Spark must start and a cluster must provide an executor.",
    )

    @field_validator("master")
    @classmethod
    def _names_a_master(cls, value: str) -> str:
        if not _SPARK_MASTER.fullmatch(value):
            raise ValueError(
                f"'{value}' names no Spark; write local[2], spark://host:7077, yarn or "
                "k8s://host:443"
            )
        return value

    @field_validator("conf")
    @classmethod
    def _settings_of_spark(cls, value: dict[str, Any]) -> dict[str, Any]:
        for key in value:
            if not key.startswith("spark."):
                raise ValueError(f"'{key}' is no setting of Spark; all begin with spark.")
            if _SPARK_SECRET.search(key):
                raise ValueError(
                    f"credentials do not belong in a config; put '{key}' into spark-defaults.conf "
                    "in the folder that SPARK_CONF_DIR names"
                )
            if key in SPARK_FIXED:
                remedy = "use analysis.master" if key == "spark.master" else "results depend on it"
                raise ValueError(f"'{key}' cannot be set here: {remedy}")
        return value

    @model_validator(mode="after")
    def _options_of_the_engine(self) -> "AnalysisConfig":
        for kind in STATISTICS_ENGINES.values():
            foreign = keys_set(self).intersection(kind.options)
            if foreign and kind.name != self.engine:
                names = ", ".join(sorted(foreign))
                raise ValueError(f"{names}: keys that belong to engine: {kind.name}")
        return self


class EtcdLedgerConfig(Section):
    """Progress of a job kept in etcd, so that another machine can take over as its master."""

    etcd: str = Field(
        min_length=1, description="Address of etcd's client port, such as http://127.0.0.1:2379."
    )
    prefix: str = Field(
        default="/ctrpipe/",
        min_length=1,
        max_length=200,
        description="Prefix of all keys of the ledger; each job adds its own name.",
    )
    ca: str | None = Field(
        default=None,
        description="PEM file of the authority that signed etcd's certificate; null: those of "
        "the system. User and password come from the environment variables CTRPIPE_ETCD_USER "
        "and CTRPIPE_ETCD_PASSWORD.",
    )
    certificate: str | None = Field(
        default=None, description="PEM file of a client certificate, if etcd requires one."
    )
    key: str | None = Field(
        default=None, description="PEM file of the key of the client certificate."
    )

    @model_validator(mode="after")
    def _has_both_or_none(self) -> "EtcdLedgerConfig":
        if (self.certificate is None) != (self.key is None):
            raise ValueError("a client certificate and its key belong together: give both")
        return self


if TYPE_CHECKING:
    RuntimeMode = str
else:
    RuntimeMode = Literal[("local", *LAUNCHERS)]


def _require_place(value: str) -> str:
    """A folder, or the address of a storage without secrets in it.

    Raises:
        ValueError: It is another address.
    """
    _, separator, rest = value.partition("://")
    if separator and ("@" in rest.partition("/")[0] or "?" in rest):
        raise ValueError(
            "an address with a user, a password or a signature is refused; "
            "credentials come from the environment"
        )
    try:
        require_address(value)
    except StorageError as error:
        raise ValueError(f"'{value}': {error.message}. {error.remedy}") from error
    return value


class RuntimeBackend(Section):
    """Where the pipeline runs, and on what."""

    mode: RuntimeMode = Field(
        default="local",
        description="; ".join(
            (
                "local: training in this process",
                *(f"{kind.mode}: {kind.summary}" for kind in LAUNCHERS.values()),
            )
        )
        + ". The other keys but threads, memory_limit_gb and checkpoints do not apply to local.",
    )
    strategy: Literal["parameter_servers", "allreduce"] = Field(
        default="parameter_servers",
        description="How the processes of a job train. parameter_servers: a master, parameter "
        "servers and workers; allreduce: each worker holds all parameters, a step trains a batch "
        "of each worker, and all apply the same sum.",
    )
    embeddings: Literal["mirrored", "hybrid"] = Field(
        default="mirrored",
        description="Where embedding rows lie with strategy: allreduce. mirrored: all of them in "
        "the memory of each worker; hybrid: each in one of parameter_servers servers, for rows "
        "that do not fit into the memory of a worker.",
    )
    threads: int | None = Field(
        default=None,
        ge=1,
        description="Threads of all libraries together; null: the cores that affinity and the "
        "container allow.",
    )
    memory_limit_gb: float = Field(
        default=1.0, gt=0, description="Memory DuckDB may use before it spills to disk."
    )
    checkpoints: Annotated[str | None, IS_PATH] = Field(
        default=None,
        description="Where checkpoints lie, such as s3://bucket/runs/clicks, gs://… or az://…, for "
        "this run alone; null: with the run. Credentials come from the environment.",
    )
    scratch: Annotated[str | None, IS_PATH] = Field(
        default=None,
        description="Folder on this disk for the working copies of runs whose output is an "
        "address; null: ctrpipe/runs in XDG_CACHE_HOME, or else in ~/.cache.",
    )
    parameter_servers: Annotated[int, SERVERS_ONLY] = Field(
        default=1, ge=1, le=1000, description="Number of parameter servers."
    )
    partitions: Annotated[int, SERVERS_ONLY] = Field(
        default=512,
        ge=1,
        le=65_536,
        description="Parts that embedding rows are divided into; a resumed run keeps the number, "
        "whatever its number of parameter servers.",
    )
    tls: Literal["auto", "always", "off"] = Field(
        default="auto",
        description="auto: members that may be on several hosts talk by mutual TLS, and those that "
        "ctrpipe run starts on this machine without; always: all do; "
        "off: none does, and addresses beyond this machine are refused.",
    )
    ledger: Annotated[Literal["sqlite"] | EtcdLedgerConfig, SERVERS_ONLY] = Field(
        default="sqlite",
        description="Where the master keeps what is done: sqlite in the run folder, or etcd.",
    )
    bytes_per_reading_task: int = Field(
        default=256 << 20,
        ge=1,
        description="Bytes of data files that a worker reads at a time, at least; less in all is "
        "read and analyzed by the process that starts the job.",
    )
    rows_per_encoding_task: int = Field(
        default=1_000_000,
        ge=1,
        description="Rows that a worker encodes at a time, at least; fewer rows in all are encoded "
        "by the process that starts the job.",
    )

    @field_validator("checkpoints", mode="after")
    @classmethod
    def _is_storage(cls, value: str | None) -> str | None:
        return value if value is None else _require_place(value)

    @property
    def ledger_kind(self) -> str:
        """`sqlite`, or the first key of the section that is given: `etcd`."""
        ledger = self.ledger
        return ledger if isinstance(ledger, str) else next(iter(type(ledger).model_fields))


class RuntimeConfig(Supervision, UpdateRule, RuntimeBackend):
    """Where and with what the pipeline runs."""

    @property
    def has_members(self) -> bool:
        """Whether a master, parameter servers and workers train, not one process."""
        return self.mode in LAUNCHERS and self.strategy == "parameter_servers"

    @property
    def has_replicas(self) -> bool:
        """Whether workers that each hold all parameters train, or all but embedding rows."""
        return self.mode in LAUNCHERS and self.strategy == "allreduce"

    @property
    def num_row_servers(self) -> int:
        """Servers of embedding rows beside workers that each hold all other parameters."""
        is_hybrid = self.has_replicas and self.embeddings == "hybrid"
        return self.parameter_servers if is_hybrid else 0

    @property
    def num_servers(self) -> int:
        """Members of role `ps`: parameter servers, or servers of embedding rows."""
        return self.num_row_servers if self.has_replicas else self.parameter_servers

    @property
    def needs_tls(self) -> bool:
        """Whether members that a launcher starts talk by TLS."""
        spans_hosts = LAUNCHERS[self.mode].spans_hosts
        return self.tls == "always" or (self.tls == "auto" and spans_hosts)


class SearchValues(Section):
    """Values that one key may take in a search: those between two, or those of a list."""

    low: float | None = Field(default=None, description="Smallest value of a number.")
    high: float | None = Field(default=None, description="Largest value, itself included.")
    log: bool = Field(
        default=False,
        description="Draw the logarithm evenly: for rates, whose order of magnitude matters.",
    )
    choices: tuple[Any, ...] | None = Field(
        default=None,
        min_length=1,
        description="The values themselves, of any kind; instead of low and high.",
    )

    @model_validator(mode="after")
    def _one_of_two(self) -> "SearchValues":
        if self.choices is not None:
            if self.low is not None or self.high is not None or self.log:
                raise ValueError("choices stand alone; low, high and log belong to a range")
            if any(value in self.choices[:index] for index, value in enumerate(self.choices)):
                raise ValueError("a value is given twice in choices; keep one")
            return self
        if self.low is None or self.high is None:
            raise ValueError("needs low and high, or choices")
        if self.low >= self.high:
            raise ValueError(f"low {self.low:g} is not below high {self.high:g}")
        if self.log and self.low <= 0:
            raise ValueError(f"log needs a low above 0, found {self.low:g}")
        return self


class TuneConfig(Section):
    """What `ctrpipe tune` searches, and how long."""

    trials: int = Field(default=30, ge=1, le=10_000, description="Configs that are trained.")
    seed: int = Field(
        default=0,
        ge=0,
        lt=2**63,
        description="Seed of the search; the same one tries the same values.",
    )
    metric: ValidationMetric = Field(
        default="logloss", description="What is best on the validation rows."
    )
    startup_trials: int = Field(
        default=8,
        ge=1,
        description="Trials drawn at random, and trained to their end, before the search learns "
        "from them.",
    )
    pruner: Literal["median", "none"] = Field(
        default="median",
        description="median: a trial stops after an epoch in which its best value is worse than "
        "the median of the others at that epoch; none: all are trained to their end.",
    )
    space: dict[str, SearchValues] = Field(
        min_length=1,
        description="Values by key, such as train.optimizer.learning_rate: {low: 1e-4, high: 1e-2, "
        "log: true}; keys of model and train.",
    )


def working_copy(address: str, scratch: str | None) -> Path:
    """The folder on this disk for a run at an address.

    Args:
        address: An address such as `s3://bucket/runs/clicks`.
        scratch: As `runtime.scratch`.
    """
    parent = Path(scratch or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "ctrpipe/runs"))
    readable = re.sub(r"[^\w.=-]+", "-", address, flags=re.ASCII).strip(".-")[-80:]
    digest = hashlib.sha256(address.rstrip("/").encode()).hexdigest()[:8]
    return parent.expanduser() / f"{readable.lstrip('.-')}-{digest}"


class Config(Section):
    """One file: the whole pipeline."""

    name: Annotated[str, MAY_CHANGE, NO_MODEL] = Field(
        default="ctrpipe", min_length=1, max_length=100, description="Name of the job."
    )
    data: Annotated[DataConfig, _ROWS] = Field(
        description="Where the rows are and how they are read."
    )
    features: Annotated[Literal["auto"] | tuple[FeatureEntry, ...], _ROWS] = Field(
        default="auto",
        description="auto, or what becomes of each column. Entries of one column are merged key by "
        "key, later ones win; with `auto` among them, the statistics decide what they leave open.",
    )
    model: AnyModel = Field(default=DeepFMConfig(), description="The architecture.")
    train: TrainConfig = Field(default=TrainConfig(), description="Training.")
    evaluation: Annotated[EvaluationConfig, MAY_CHANGE, NO_MODEL] = Field(
        default=EvaluationConfig(), description="Metrics."
    )
    export: Annotated[ExportConfig, MAY_CHANGE, NO_MODEL] = Field(
        default=ExportConfig(), description="The servable model."
    )
    report: Annotated[ReportConfig, MAY_CHANGE, NO_MODEL] = Field(
        default=ReportConfig(), description="The report."
    )
    runtime: Annotated[
        RuntimeConfig,
        MAY_CHANGE,
        NotSearched("says where training runs, and trials run in this process"),
    ] = Field(default=RuntimeConfig(), description="Where it runs.")
    kubernetes: Annotated[KubernetesConfig, MAY_CHANGE, NO_MODEL] = Field(
        default=KubernetesConfig(), description="What ctrpipe submit makes pods with."
    )
    analysis: Annotated[AnalysisConfig | None, MAY_CHANGE, NO_MODEL] = Field(
        default=None,
        description="Where statistics are computed; null: here, or by MaxCompute for its tables.",
    )
    output: Annotated[str, IS_PATH, MAY_CHANGE, NO_MODEL] = Field(
        default="runs/ctrpipe",
        min_length=1,
        description="The run folder; or an address, such as s3://bucket/runs/clicks, gs://… or "
        "az://…, at which the run is kept. Credentials come from the environment.",
    )
    tune: Annotated[TuneConfig | None, MAY_CHANGE, NotSearched("says how the search is done")] = (
        Field(
            default=None,
            description="What ctrpipe tune searches; no other reads it.",
        )
    )

    @field_validator("features", mode="before")
    @classmethod
    def _auto_as_entry(cls, value: Any) -> Any:
        if not isinstance(value, list | tuple):
            return value
        return tuple({"columns": ALL_COLUMNS} if item == "auto" else item for item in value)

    @field_validator("output", mode="after")
    @classmethod
    def _is_place(cls, value: str) -> str:
        return _require_place(value)

    @property
    def member_models(self) -> tuple[ModelConfig, ...]:
        """Architectures that are trained, in turn: one, or those of an ensemble.

        Raises:
            ValidationError: Keys of `model` and of an entry of train.ensemble_models contradict.
        """
        entries = self.train.ensemble_models
        return (
            (self.model,)
            if entries is None
            else tuple(member_model(self.model, entry) for entry in entries)
        )

    @property
    def stored_at(self) -> str | None:
        """The address that the run is kept at; None: only its folder."""
        return self.output.rstrip("/") if "://" in self.output else None

    @property
    def run_folder(self) -> Path:
        """The run folder as a path; of a run at an address, its working copy on this disk."""
        address = self.stored_at
        return Path(self.output) if address is None else working_copy(address, self.runtime.scratch)

    @property
    def checkpoints_at(self) -> str | None:
        """The address of the checkpoints; None: they lie in the run folder."""
        if self.runtime.checkpoints is not None or self.stored_at is None:
            return self.runtime.checkpoints
        return f"{self.stored_at}/checkpoints"

    @property
    def has_sensitive_columns(self) -> bool:
        """Whether any entry marks columns whose values are shown nowhere."""
        return any(not isinstance(entry, str) and entry.sensitive for entry in self.features)
