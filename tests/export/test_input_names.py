import keyword
import re

from hypothesis import given
from hypothesis import strategies as st

from ctr_pipeline.export.input_names import choose_input_names


def test_allowed_names_stay_and_others_get_the_nearest() -> None:
    assert choose_input_names(["user id", "C1", "größe", "2nd", "class", "c1", "user_id"]) == {
        "user id": "user_id_2",
        "C1": "C1",
        "größe": "gr__e",
        "2nd": "column_2nd",
        "class": "column_class",
        "c1": "c1_2",
        "user_id": "user_id",
    }


@given(st.lists(st.text(min_size=1, max_size=6), unique=True, max_size=20))
def test_names_are_allowed_and_unique(columns: list[str]) -> None:
    names = choose_input_names(columns)
    assert list(names) == columns
    assert len({name.lower() for name in names.values()}) == len(columns)
    for name in names.values():
        assert re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name)
        assert not keyword.iskeyword(name)


def test_column_is_called_by_its_place_without_a_letter_left() -> None:
    assert choose_input_names(["user", "пол", "日付", "日付1", "🙂", "7", "column_2"]) == {
        "user": "user",
        "пол": "column_2_2",
        "日付": "column_3",
        "日付1": "column_1",
        "🙂": "column_5",
        "7": "column_7",
        "column_2": "column_2",
    }
