"""Which texts are lists of elements, told from the first rows."""

import random

import pyarrow as pa
import pytest

from ctr_pipeline.dataset.inference import infer_sequence
from ctr_pipeline.features import SequenceSpec

ROWS = 400
CHANCE = random.Random(1)


def lists(delimiter, element, least=1):
    return [delimiter.join(element() for _ in range(CHANCE.randint(least, 5))) for _ in range(ROWS)]


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (lists("|", lambda: f"t{CHANCE.randrange(50)}"), SequenceSpec()),
        (lists(",", lambda: f"t{CHANCE.randrange(50)}", 0), SequenceSpec(delimiter=",")),
        # Weights do not come again, what they weigh does.
        (
            lists(";", lambda: f"i{CHANCE.randrange(50)}:{CHANCE.random():.3f}"),
            SequenceSpec(delimiter=";", weights=True),
        ),
        # Histories of ids.
        (lists(",", lambda: str(CHANCE.randrange(50))), SequenceSpec(delimiter=",")),
        (lists(" ", lambda: str(CHANCE.randrange(50))), SequenceSpec(delimiter=" ")),
        (lists(" ", lambda: f"word{CHANCE.randrange(50)}"), None),
        (lists(",", lambda: str(100 + CHANCE.randrange(50))), None),
        ([f"{index % 5} {index % 7}" for index in range(ROWS)], None),
        ([f"Street {index % 9}, Town, Land" for index in range(ROWS)], None),
        ([f"s{index},t{index}" + ",u" * (index % 2) for index in range(ROWS)], None),
        ([f"{index % 5}|{index % 7}" for index in range(ROWS)], None),
        ([f"{index % 5},{index % 7}" if index % 3 else "7" for index in range(ROWS)], None),
        (["a|b", "a", "b|c|a"], None),
        (["", None] * ROWS, None),
        ([f"v{index % 9}" for index in range(ROWS)], None),
        (["a|b"] + [f"v{index % 9}" for index in range(ROWS)], None),
    ],
    ids=["bars", "commas", "weights", "ids", "ids and blanks", "words", "thousands", "codes",
         "address", "new", "pairs", "decimal", "few", "missing", "none", "once"],
)  # fmt: skip
def test_lists_are_told_from_what_has_delimiters(texts, expected):
    assert infer_sequence(pa.array(texts, pa.string())) == expected
