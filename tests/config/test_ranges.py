import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctr_pipeline.config.ranges import RangeError, expand_range


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("I1..I3", ("I1", "I2", "I3")),
        ("f08..f11", ("f08", "f09", "f10", "f11")),
        ("f8..f11", ("f8", "f9", "f10", "f11")),
        ("price_1_usd..price_2_usd", ("price_1_usd", "price_2_usd")),
        ("u2_f1..u2_f2", ("u2_f1", "u2_f2")),
        ("I7..I7", ("I7",)),
        ("1..3", ("1", "2", "3")),
        ("I0..I1", ("I0", "I1")),
        ("label", ("label",)),
        ("a..b", ("a..b",)),
        ("spalte_ü1..spalte_ü2", ("spalte_ü1", "spalte_ü2")),
    ],
)
def test_range_stands_for_these_names(text, names):
    assert expand_range(text) == names


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("I13..I1", "runs backwards; write I1..I13"),
        ("A1..B3", "alike but for one number"),
        ("I1..", "alike but for one number"),
        ("..I3", "alike but for one number"),
        ("I1..I2..I3", "alike but for one number"),
        ("a1_b1..a2_b2", "more than one number"),
        ("f1..f012", "different widths"),
        ("f1..f9999999", "more than 100,000"),
    ],
)
def test_bad_range_is_refused(text, reason):
    with pytest.raises(RangeError, match=reason.replace(".", r"\.")):
        expand_range(text)


@given(
    prefix=st.text(alphabet="abcXYZ_", max_size=5),
    suffix=st.text(alphabet="abcXYZ_", max_size=5),
    first=st.integers(0, 999),
    count=st.integers(1, 50),
    width=st.integers(0, 6),
)
def test_range_counts_every_name_once(prefix, suffix, first, count, width):
    names = [f"{prefix}{number:0{width}d}{suffix}" for number in range(first, first + count)]
    widths = {len(name) for name in names}
    if len(widths) > 1 and width > 1 and len(str(first)) < width:
        return  # the padding ends within the range, which has no single width
    assert list(expand_range(f"{names[0]}..{names[-1]}")) == names
