"""Inputs that break things, and plans over them, shared by this folder's tests."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ctr_pipeline.features import FeatureSpec, SequenceSpec, VectorSpec, expression_key
from ctr_pipeline.specs.columns import ColumnType
from ctr_pipeline.statistics import ColumnStatistics, Moments, Statistics, VocabularyStatistics
from ctr_pipeline.transforms import TRANSFORMS, AnyTransform
from ctr_pipeline.transforms.age import Age
from ctr_pipeline.transforms.base import TransformKind
from ctr_pipeline.transforms.bucketize import Bucketize
from ctr_pipeline.transforms.clip import Clip
from ctr_pipeline.transforms.count_encode import CountEncode
from ctr_pipeline.transforms.datetime import Datetime
from ctr_pipeline.transforms.fill import Fill
from ctr_pipeline.transforms.hash import Hash
from ctr_pipeline.transforms.log import Log
from ctr_pipeline.transforms.log_round import LogRound
from ctr_pipeline.transforms.normalize import Normalize
from ctr_pipeline.transforms.round_identity import RoundIdentity
from ctr_pipeline.transforms.standardize import Standardize
from ctr_pipeline.transforms.target_encode import TargetEncode
from ctr_pipeline.transforms.vocabulary import Vocabulary

MAX = float(np.finfo(np.float64).max)
TINY = float(np.finfo(np.float64).tiny)

HOSTILE_NUMBERS = np.array(
    [
        *(np.nan, np.inf, -np.inf, 0.0, -0.0, 5e-324, -5e-324, TINY / 2, -TINY / 2, TINY, -TINY),
        *(1e-40, -1e-40, 1e-30, 1.0, -1.0, -2.0, -3.0, 2.0, np.nextafter(2.0, 3.0), 0.5, 1.5, 2.5),
        *(-0.5, -0.4999, 3.0, 4.0, 7.0, 8.0, 31.0, 100.0, 1e6, 2.0**31, 2.0**53, 2.0**63, 2.0**64),
        *(1e15, 1e18, -1e18, 3.4e38, 3.5e38, -3.5e38, 1e300, -1e300, MAX, -MAX),
        *(np.e, np.e**0.5, np.e**1.5, np.exp(2.5), np.sqrt(2), 2**1.5, 2**2.5, np.exp(np.sqrt(2))),
    ]
)

HOSTILE_TEXTS: list[bytes | None] = [
    None,
    b"",
    b" ",
    b"\x00",
    b"a\x00",
    b"a",
    b"0",
    b"00012",
    b"32813e21",
    b"-1",
    b"nan",
    b"line\nbreak",
    b"tab\t",
    "é".encode(),
    "日本語テキスト".encode(),
    "👍🏽".encode(),
    b"\xff\xfe not UTF-8",
    b"2024-02-29",
    b"2024-02-30T10:00",
    b"2024-03-31 18:05:59.25+02:00",
    b"31.03.2024 18:05",
    b"1700000000000",
    b"-86401",
    b"a|b||c|d|e|f",
    b"|||",
    b"a:0.5|b:2|c",
    b"a:1e-40|b:1e300|c:1e999|d:-1|e:nan|f:0|g:00.5|h:.5e1|i:7.|j:|:3|l:m:2|n:+1",
    b"a:0|b:0",
    "日本語日本x:3|é:4".encode(),
    b"a:1\nb:2|\n:3",
    b"a:1e-200|b:1e-30|c:3e-39",
    b"1|2|3",
    b"-1.5|+2e3|.5",
    b"1.|1E-3|-1e300",
    b"1e-320|1e-40|-0",
    b"1|2",
    b"1|2|3|4",
    b"1|nan|3",
    b"1e999|2|3",
    b"1||3",
    b" 1|2|3",
    b"1|2|3\n",
    b"0x1|1_0|3",
    *(bytes(range(65, 65 + n % 26)) * (n // max(1, n % 26) + 1) for n in range(1, 40)),
    *(b"x" * n for n in (15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 1000)),
]

VOCABULARY = ["a", "line\nbreak", "é", "日本語テキスト", "00012", "x" * 65, " "]

EXAMPLE_MOMENTS = Moments(count=9, mean=1.7, standard_deviation=0.3, minimum=-0.25, maximum=2.75)
EXAMPLES: dict[str, tuple[AnyTransform, ...]] = {
    "log": (Log(),),
    "standardize": (Standardize(), Standardize(clip=None)),
    "normalize": (Normalize(),),
    "clip": (Clip(minimum=-1.0), Clip(maximum=1e20), Clip(minimum=0.1, maximum=0.7)),
    "fill": (Fill(value=-1.25),),
    "log_round": (
        LogRound(num_bins=8),
        LogRound(num_bins=50, base=2.0, default_value=3),
        LogRound(num_bins=2000, base=1.5),
    ),
    "round_identity": (RoundIdentity(num_buckets=8), RoundIdentity(num_buckets=2**30)),
    "bucketize": (
        Bucketize(boundaries=(-1.0, 0.0, 0.5, 2.0, 1e18)),
        Bucketize(boundaries=(5e-324,)),
        Bucketize(quantiles=4),
        Bucketize(equal_width=6),
        Bucketize(ln2=True),
    ),
    "hash": (
        Hash(buckets=1),
        Hash(buckets=3),
        Hash(buckets=1_000_003),
        Hash(buckets=7, functions=3),
    ),
    "vocabulary": (Vocabulary(), Vocabulary(oov_buckets=5)),
    "count_encode": (CountEncode(), CountEncode(min_count=4)),
    "datetime": (
        Datetime(parts=("hour",)),
        Datetime(parts=("weekday", "is_weekend", "month"), utc_offset_minutes=330),
        Datetime(parts=("day",), format="epoch_milliseconds"),
        Datetime(parts=("minute", "hour_of_week"), format="%d.%m.%Y %H:%M"),
    ),
    "age": (Age(at="2024-06-01"), Age(at="2024-06-01T12:00Z", format="epoch_seconds")),
    "target_encode": (TargetEncode(), TargetEncode(smoothing=0.3, order="time", min_count=3)),
}
assert EXAMPLES.keys() == TRANSFORMS.keys()


def number_spec(
    column: str,
    *,
    number: Sequence[AnyTransform] | None = None,
    id: Sequence[AnyTransform] | None = None,
) -> FeatureSpec:
    return FeatureSpec(
        column=column,
        column_type=ColumnType.NUMBER,
        number=None if number is None else tuple(number),
        id=None if id is None else tuple(id),
    )


def text_spec(column: str, *chain: AnyTransform) -> FeatureSpec:
    return FeatureSpec(column=column, column_type=ColumnType.TEXT, id=chain)


def example_specs() -> list[FeatureSpec]:
    """Every transform alone, and number transforms before each that gives an id."""
    specs = []
    for name, examples in EXAMPLES.items():
        for n, transform in enumerate(examples):
            if transform.kind is TransformKind.NUMBER_TO_NUMBER:
                specs.append(number_spec(f"{name}_{n}", number=[transform]))
            elif transform.kind is TransformKind.NUMBER_TO_ID:
                specs.append(number_spec(f"{name}_{n}", id=[transform]))
                if transform != RoundIdentity(num_buckets=2**30):
                    for before in ((Log(),), (Fill(value=2.0), Log(), Standardize())):
                        column = f"{name}_{n}_after_{len(before)}"
                        specs.append(number_spec(column, id=[*before, transform]))
            elif transform.kind is TransformKind.TEXT_TO_NUMBER:
                column = f"{name}_{n}"
                is_age = isinstance(transform, Age)
                after = () if is_age else (Standardize(clip=None),)
                cut = Bucketize(boundaries=(0.5, 7.0)) if is_age else Bucketize(quantiles=4)
                specs.append(
                    FeatureSpec(
                        column=column,
                        column_type=ColumnType.TEXT,
                        number=(transform, Clip(maximum=5.0), *after),
                        id=(transform, Fill(value=2.0), cut),
                    )
                )
                specs.append(text_spec(f"{column}_id", transform, LogRound(num_bins=5)))
            else:
                specs.append(text_spec(f"{name}_{n}", transform))
    specs.append(number_spec("both", number=[Log(), Standardize()], id=[Bucketize(quantiles=4)]))
    specs.append(number_spec("raw", number=[]))
    specs += cross_specs(specs)
    specs.append(
        FeatureSpec(
            column="text_both",
            column_type=ColumnType.TEXT,
            number=(CountEncode(), Clip(maximum=4.0)),
            id=(Vocabulary(),),
        )
    )
    specs += sequence_specs()
    specs += vector_specs()
    return specs


def vector_specs() -> list[FeatureSpec]:
    """Texts that are vectors, with and without a chain."""
    ways: tuple[tuple[VectorSpec, tuple[AnyTransform, ...]], ...] = (
        (VectorSpec(length=3), ()),
        (VectorSpec(length=3), (Standardize(),)),
        (VectorSpec(length=2), (Fill(value=-1.5), Clip(maximum=2.0), Log(), Normalize())),
        (VectorSpec(length=1), (Log(),)),
        (VectorSpec(length=2, delimiter="日本"), ()),
    )
    return [
        FeatureSpec(column=f"vector_{n}", column_type=ColumnType.TEXT, number=chain, vector=vector)
        for n, (vector, chain) in enumerate(ways)
    ]


def sequence_specs() -> list[FeatureSpec]:
    """Texts that are lists, by every pooling and with weights."""
    ways = (
        (Hash(buckets=1000), SequenceSpec(delimiter="a", max_length=3, keep="first")),
        (Vocabulary(), SequenceSpec(delimiter="|", max_length=4, pooling="sum")),
        (Hash(buckets=7), SequenceSpec(max_length=2, weights=True)),
        (Vocabulary(oov_buckets=3), SequenceSpec(weights=True, pooling="sqrtn", max_length=5)),
        (Hash(buckets=50), SequenceSpec(weights=True, pooling="max", keep="first")),
        (Hash(buckets=50), SequenceSpec(weights=True, pooling="sum", weight_delimiter=".")),
        (Hash(buckets=50), SequenceSpec(delimiter="日本", max_length=1)),
    )
    return [
        FeatureSpec(
            column=f"sequence_{n}", column_type=ColumnType.TEXT, id=(transform,), sequence=sequence
        )
        for n, (transform, sequence) in enumerate(ways)
    ]


def cross_specs(specs: Sequence[FeatureSpec]) -> list[FeatureSpec]:
    """Crosses of the columns of others: texts, numbers by their ids, and both."""
    by_column = {spec.column: spec for spec in specs}
    text = FeatureSpec(column="hash_0", column_type=ColumnType.TEXT)
    other = FeatureSpec(column="vocabulary_0", column_type=ColumnType.TEXT)
    buckets = by_column["bucketize_2_after_3"].model_copy(update={"number": None})
    rounded = by_column["round_identity_1"]
    return [
        FeatureSpec(
            column=f"cross_{n}",
            column_type=ColumnType.TEXT,
            id=(Hash(buckets=num_buckets),),
            cross=parts,
        )
        for n, (parts, num_buckets) in enumerate(
            (
                ((text, other), 1_000_003),
                ((text, buckets, other), 7),
                ((buckets, rounded), 1_000_003),
            )
        )
    ]


def statistics_for(specs: Sequence[FeatureSpec], folder: Path) -> Statistics:
    """Statistics that every chain of `specs` finds what it needs in."""
    (folder / "vocabularies").mkdir(exist_ok=True)
    columns, derived, boundaries, vocabularies, tables = {}, {}, {}, {}, {}
    for spec in (part for feature in specs for part in feature.parts):
        columns[spec.column] = ColumnStatistics(
            column=spec.column,
            column_type=spec.column_type,
            count=9,
            num_missing=4,
            missing_label_rate=0.75,
            num_distinct=9,
            moments=EXAMPLE_MOMENTS
            if spec.column_type is ColumnType.NUMBER or spec.vector is not None
            else None,
        )
        for chain in (spec.number or (), spec.id or ()):
            for length, transform in enumerate(chain):
                key = expression_key(spec.column, chain[:length])
                derived[key] = EXAMPLE_MOMENTS
                boundaries[key] = {"4": (-0.5, float(np.log1p(3.0)), 2.0)}
                if isinstance(transform, Vocabulary):
                    vocabularies[spec.column] = write_vocabulary(spec.column, transform, folder)
                elif isinstance(transform, CountEncode | TargetEncode):
                    table = write_vocabulary(spec.column, Vocabulary(min_count=1), folder)
                    tables[spec.column] = table
    return Statistics(
        fingerprint="f",
        num_rows=9,
        label_rate=0.5,
        columns=columns,
        derived_moments=derived,
        boundaries=boundaries,
        vocabularies=vocabularies,
        value_tables=tables,
    )


def write_vocabulary(column: str, transform: Vocabulary, folder: Path) -> VocabularyStatistics:
    file = f"vocabularies/{column}.parquet"
    counts = list(range(len(VOCABULARY) + 1, 1, -1))
    pq.write_table(
        pa.table({"value": VOCABULARY, "count": counts, "label_sum": [n // 2 for n in counts]}),
        folder / file,
    )
    return VocabularyStatistics(
        column=column,
        min_count=transform.min_count,
        max_size=transform.max_size,
        file=file,
        size=len(VOCABULARY),
        num_excluded_values=0,
        num_excluded_rows=0,
    )


def batch_for(
    specs: Sequence[FeatureSpec], numbers: np.ndarray, texts: Sequence[bytes | None]
) -> pa.RecordBatch:
    """The same numbers and texts in every column, NaN as NULL in every other column."""
    columns = {}
    for n, spec in enumerate(part for feature in specs for part in feature.parts):
        if spec.column in columns:
            continue
        if spec.column_type is ColumnType.TEXT:
            columns[spec.column] = pa.array(texts, pa.large_binary())
        else:
            columns[spec.column] = pa.array(numbers, pa.float64(), from_pandas=n % 2 == 0)
    return pa.record_batch(columns)
