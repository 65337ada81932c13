"""Texts that tell points in time: kernel and layer against each other, both against Python's."""

import re
from datetime import UTC, datetime, timedelta, timezone
from functools import cache

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
from hypothesis import example, given
from hypothesis import strategies as st

from ctr_pipeline.datetime_formats import check_format, iso_seconds
from ctr_pipeline.kernels.arrow_values import text_column
from ctr_pipeline.kernels.text_buffers import text_buffers
from ctr_pipeline.kernels.time_parsing import (
    FIRST_SECOND,
    LAST_SECOND,
    NO_TIME,
    parse_seconds,
)
from ctr_pipeline.kernels.time_parts import ages, part_ids
from ctr_pipeline.preprocessing import Age, DatetimePart
from ctr_pipeline.transforms.datetime import PART_SIZES

FORMATS = (
    "iso",
    "epoch_seconds",
    "epoch_milliseconds",
    "epoch_nanoseconds",
    "%d.%m.%Y",
    "%Y%m%d%H%M%S",
    "%y%m%d%H",
    "%%%H:%M %Y-%m-%d",
    "%m/%d/%Y %I:%M:%S %p",
    "%d-%b-%y %H:%M:%S.%f %z",
)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def parts_of(format):
    """Parts and offsets that are compared; they depend on seconds alone, not on the format."""
    everything = [(part, offset) for part in PART_SIZES for offset in (0, -570)]
    return everything if format == "iso" else [("hour_of_week", 0), ("minute", -570)]


@cache
def served_by(format):
    layers = [
        Age(86_400 * 20_000, format, dtype="float64"),
        *(DatetimePart(part, format, offset) for part, offset in parts_of(format)),
    ]
    # A graph: the rewriter runs.
    return tf.function(
        lambda text: [layer(text) for layer in layers],
        input_signature=[tf.TensorSpec([None], tf.string)],
    )


MOMENTS = st.datetimes(
    min_value=EPOCH.replace(year=1, day=2, tzinfo=None),
    max_value=EPOCH.replace(year=9999, month=12, day=30, tzinfo=None),
)
OFFSETS = st.integers(-23 * 60, 23 * 60)


def seconds_of(texts, format):
    return parse_seconds(text_buffers(pa.array(texts, pa.large_binary())), format)


def assert_equal_faces(texts, format):
    seconds = seconds_of(texts, format)
    served = [tensor.numpy() for tensor in served_by(format)(tf.constant(texts, tf.string))]
    np.testing.assert_array_equal(ages(seconds, 86_400 * 20_000), served.pop(0))
    for part, offset in parts_of(format):
        ids = part_ids(seconds, part, offset, missing_id=PART_SIZES[part])
        np.testing.assert_array_equal(ids, served.pop(0), err_msg=f"{part} {offset}")
        assert ids.min(initial=0) >= 0
        assert ids.max(initial=0) <= PART_SIZES[part]
    return seconds


@given(moment=MOMENTS, offset=st.none() | OFFSETS, separator=st.sampled_from("T "),
       cut=st.sampled_from(["date", "minutes", "seconds", "fraction"]), colon=st.booleans(),
       digits=st.integers(1, 9))  # fmt: skip
def test_iso_texts_are_what_python_reads(moment, offset, separator, cut, colon, digits):
    if cut == "date":
        text, expected = (
            moment.strftime("%Y").zfill(4) + moment.strftime("-%m-%d"),
            datetime(moment.year, moment.month, moment.day, tzinfo=UTC),
        )
    else:
        zone = timezone(timedelta(minutes=offset or 0))
        kept = moment.replace(microsecond=0, second=0 if cut == "minutes" else moment.second)
        expected = kept.replace(tzinfo=zone)
        text = kept.strftime("%Y").zfill(4) + kept.strftime(f"-%m-%d{separator}%H:%M")
        text += "" if cut == "minutes" else kept.strftime(":%S")
        text += f".{moment.microsecond:06d}123"[: digits + 1] if cut == "fraction" else ""
        if offset == 0:
            text += "Z"
        elif offset is not None:
            sign, size = ("-" if offset < 0 else "+"), abs(offset)
            text += f"{sign}{size // 60:02d}{':' if colon else ''}{size % 60:02d}"
    wanted = (expected - EPOCH) // timedelta(seconds=1)
    (seconds,) = assert_equal_faces([text.encode()], "iso")
    assert seconds == wanted
    local = EPOCH + timedelta(seconds=wanted)
    parts = {part: part_ids(np.array([seconds]), part, 0, missing_id=99)[0] for part in PART_SIZES}
    assert parts == {
        "minute": local.minute,
        "hour": local.hour,
        "hour_of_week": 24 * local.weekday() + local.hour,
        "weekday": local.weekday(),
        "is_weekend": int(local.weekday() >= 5),
        "day": local.day - 1,
        "month": local.month - 1,
    }


PIECES = [
    "2024",
    "-02",
    "-29",
    "-30",
    "-13",
    "-00",
    "T",
    " ",
    "24:00",
    "23:59",
    ":60",
    ":59",
    ".5",
    "Z",
    ".",
    "+01:00",
    "-2359",
    "+2400",
    "+0060",
    " +01",
    " UTC",
    ",25",
    "23",
    "0000",
    "1970-01-01",
    "\n",
    "\x00",
    "é",
    "1",
    "+",
]
ALMOST = st.lists(st.sampled_from(PIECES), max_size=8).map("".join)


@given(texts=st.lists(st.one_of(ALMOST, st.text(max_size=30)), min_size=1, max_size=10))
@example(texts=["2024-02-30", "2023-02-29", "2024-02-29", "1900-02-29", "2000-02-29", "0000-01-01"])
@example(
    texts=["2024-05-01 10", "2024-05-01 10:00:00+00", "2024-05-01 10:00:00 UTC", "\t2024-05-01 "]
)
@example(texts=["0001-01-01T00:00+23:59", "9999-12-31T23:59-23:59", "0001-01-01", "9999-12-31"])
@example(texts=["2024-01-01T10:20\n", "2024-01-01\n", " 2024-01-01", "2024-01-01T10:20:30.", "-"])
@example(
    texts=["2024-01-01T10:20:30.1234567890", "2024-01-01T10:20z", "2024-01-01t10:20", "٢٠٢٤-01-01"]
)
def test_datetime_kernel_and_layer_agree_on_texts_that_are_almost_times(texts):
    assert_equal_faces([text.encode("utf-8", "surrogatepass") for text in texts], "iso")


@given(texts=st.lists(st.binary(max_size=40), min_size=1, max_size=10))
def test_datetime_kernel_and_layer_agree_on_any_bytes(texts):
    for format in FORMATS:
        assert_equal_faces(texts, format)


@given(numbers=st.lists(st.integers(-(10**20), 10**20), min_size=1, max_size=10))
@example(numbers=[9 * 10**18 - 1, 9 * 10**18, -(9 * 10**18) + 1, 1_709_686_869_200_689_522])
@example(numbers=[0, -1, 999, 1000, -1000, -999, FIRST_SECOND, FIRST_SECOND - 1, LAST_SECOND + 1])
def test_epochs_are_divided_downwards(numbers):
    texts = [str(number).encode() for number in numbers]
    for format, divisor in (
        ("epoch_seconds", 1),
        ("epoch_milliseconds", 10**3),
        ("epoch_nanoseconds", 10**9),
    ):
        wanted = [number // divisor for number in numbers]
        fits = [
            FIRST_SECOND <= seconds <= LAST_SECOND and abs(number) < 9 * 10**18
            for number, seconds in zip(numbers, wanted, strict=True)
        ]
        expected = [s if fit else NO_TIME for s, fit in zip(wanted, fits, strict=True)]
        assert assert_equal_faces(texts, format).tolist() == expected


@given(moment=MOMENTS, offset=OFFSETS)
def test_patterns_are_what_python_reads(moment, offset):
    moment = moment.replace(tzinfo=timezone(timedelta(minutes=offset)))
    for format in FORMATS[4:]:
        text = moment.strftime(format.replace("%Y", f"{moment.year:04d}"))
        expected = datetime.strptime(text, format)  # noqa: DTZ007  some formats have no zone
        expected = expected if expected.tzinfo else expected.replace(tzinfo=UTC)
        wanted = (expected - EPOCH) // timedelta(seconds=1)
        for same in (text, text.upper(), text.lower(), f" {text}\t"):
            (seconds,) = assert_equal_faces([same.encode()], format)
            assert seconds == wanted
        almost = [text + "\n", text[:-1], "x" * len(text), text.replace("0", "", 1), text + "0"]
        assert_equal_faces([one.encode() for one in almost], format)


@pytest.mark.parametrize(
    ("text", "format"),
    [
        ("1/5/2024 3:07 PM", "%m/%d/%Y %I:%M %p"),
        ("01/05/2024 03:07 pm", "%m/%d/%Y %I:%M %p"),
        ("5.1.24 15:07", "%d.%m.%y %H:%M"),
        ("05-JAN-2024 15:07:00.250", "%d-%b-%Y %H:%M:%S.%f"),
        ("5/Jan/2024:17:07:00 +0200", "%d/%b/%Y:%H:%M:%S %z"),
        ("2024-01-05 15:07:00", "%d.%m.%Y"),
        ("2024-01-05 15:07:00", "epoch_seconds"),
        ("1704467220.75", "epoch_seconds"),
        ("2024-01-05 15:07:00,123", "iso"),
        ("2024-01-05 15:07:00+00", "iso"),
        ("2024-01-05 16:07:00.5 +01:00", "iso"),
        ("2024-01-05 15:07:00 UTC", "iso"),
    ],
)
def test_one_moment_in_many_writings(text, format):
    (seconds,) = assert_equal_faces([text.encode()], format)
    assert seconds == 1_704_467_220


@given(text=ALMOST)
def test_dates_of_a_config_are_those_of_rows(text):
    (seconds,) = seconds_of([text.encode()], "iso")
    try:
        assert iso_seconds(text) in {seconds} | set(range(FIRST_SECOND - 86_400, FIRST_SECOND))
    except ValueError:
        assert seconds == NO_TIME


def test_integers_and_missing_texts():
    array = pa.array([1_700_000_000, None], pa.int64())
    seconds = parse_seconds(text_column(array, column="c").values, "epoch_seconds")
    assert seconds.tolist() == [1_700_000_000, NO_TIME]
    assert DatetimePart("hour", "epoch_seconds")(np.array([3600, -1])).numpy().tolist() == [1, 23]


@pytest.mark.parametrize(
    ("format", "message"),
    [
        ("%d.%m", "needs %Y or %y, %m or %b, and %d"),
        ("%Y-%m-%d %I", "needs %I and %p together"),
        ("%Y-%m-%d %H %I %p", "the hour twice"),
        ("%Y-%m-%d %j", "has %j"),
        ("%Y-%m-%d %f%H", "digits right behind %f"),
        ("%z %Y-%m-%d", "something behind %z"),
        ("%Y-%m-%d %y", "the year twice"),
        ("%Y-%m-%d %", "has %,"),
        ("%Y年%m%d", "only ASCII"),
        ("", "needs %Y"),
        ("ISO", "needs %Y"),
    ],
)
def test_unknown_formats_are_refused(format, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        check_format(format)
    with pytest.raises(ValueError, match=re.escape(message)):
        Age(0, format)
    with pytest.raises(ValueError, match="part must be one of"):
        DatetimePart("century")
