import dataclasses
import json
import math
from dataclasses import dataclass
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctr_pipeline.distributed.coordination import messages, spec
from ctr_pipeline.distributed.coordination.codec import (
    MalformedMessage,
    decode,
    encode,
    fields_to_record,
    from_record,
    set_fields,
    to_record,
)


@dataclass(frozen=True)
class Leaf:
    number: int
    real: float
    text: str
    truth: bool


@dataclass(frozen=True)
class Tree:
    kind: Literal["oak", "elm"]
    leaf: Leaf
    many: tuple[Leaf, ...]
    pair: tuple[int, str]
    nested: tuple[tuple[int, float], ...]
    maybe: Leaf | None
    perhaps: int | None


LEAF = Leaf(1, 0.5, "x", True)
TREE = Tree("oak", LEAF, (LEAF, LEAF), (1, "b"), ((1, 2.0),), None, 3)

leaves = st.builds(
    Leaf,
    number=st.integers(min_value=-(2**70), max_value=2**70),
    real=st.floats(allow_nan=False),
    text=st.text(),
    truth=st.booleans(),
)
trees = st.builds(
    Tree,
    kind=st.sampled_from(["oak", "elm"]),
    leaf=leaves,
    many=st.lists(leaves, max_size=3).map(tuple),
    pair=st.tuples(st.integers(), st.text()),
    nested=st.lists(st.tuples(st.integers(), st.floats(allow_nan=False))).map(tuple),
    maybe=st.none() | leaves,
    perhaps=st.none() | st.integers(),
)


class TestRoundTrip:
    @given(trees)
    def test_every_bit_returns(self, tree):
        assert decode(Tree, encode(tree)) == tree

    def test_masks_beyond_what_a_float_holds(self):
        bitmaps = messages.BatchLoss(2**64 - 1, 0.0)
        assert decode(messages.BatchLoss, encode(bitmaps)) == bitmaps
        assert b"18446744073709551615" in encode(bitmaps)

    @pytest.mark.parametrize("value", [math.inf, -math.inf, 5e-324, 0.1, 1e308])
    def test_floats(self, value):
        leaf = dataclasses.replace(LEAF, real=value)
        assert decode(Leaf, encode(leaf)).real == value

    def test_characters_that_are_no_unicode_become_question_marks(self):
        odd = dataclasses.replace(LEAF, text="a\udcffé")
        assert decode(Leaf, encode(odd)) == dataclasses.replace(LEAF, text="a?é")

    def test_a_loss_that_is_no_number(self):
        assert math.isnan(decode(Leaf, encode(dataclasses.replace(LEAF, real=math.nan))).real)

    def test_a_whole_float_may_be_written_as_an_integer(self):
        found = decode(Leaf, b'{"number": 1, "real": 2, "text": "", "truth": false}')
        assert type(found.real) is float
        assert found.real == 2.0

    def test_message_is_plain_json(self):
        assert json.loads(encode(TREE)) == {
            "kind": "oak",
            "leaf": {"number": 1, "real": 0.5, "text": "x", "truth": True},
            "many": [{"number": 1, "real": 0.5, "text": "x", "truth": True}] * 2,
            "pair": [1, "b"],
            "nested": [[1, 2.0]],
            "maybe": None,
            "perhaps": 3,
        }

    def test_every_message_of_the_vocabulary_can_be_read(self):
        kinds = [
            kind
            for module in (messages, spec)
            for kind in vars(module).values()
            if dataclasses.is_dataclass(kind) and kind.__module__ == module.__name__
        ]
        assert len(kinds) > 20
        for kind in kinds:
            if any(field.default is dataclasses.MISSING for field in dataclasses.fields(kind)):
                with pytest.raises(MalformedMessage, match="missing"):
                    decode(kind, b"{}")
            else:
                assert decode(kind, b"{}") == kind()


def changed(**changes):
    return json.dumps({**json.loads(encode(LEAF)), **changes}).encode()


class TestRefusals:
    @pytest.mark.parametrize(
        ("data", "place"),
        [
            (changed(number=1.5), "Leaf.number: .*valid integer"),
            (changed(number=True), "Leaf.number: .*valid integer"),
            (changed(number="1"), "Leaf.number: .*valid integer"),
            (changed(number=None), "Leaf.number: .*valid integer"),
            (changed(real="0.5"), "Leaf.real: .*valid number"),
            (changed(real=True), "Leaf.real: .*valid number"),
            (changed(text=1), "Leaf.text: .*valid string"),
            (changed(truth=1), "Leaf.truth: .*valid boolean"),
            (changed(extra=1), "Leaf.extra is unknown"),
            (changed(**{"e" * 9000: 1}), "Leaf.e+ is unknown"),
            (b'{"number": 1}', "Leaf.real is missing; Leaf.text is missing; Leaf.truth is missing"),
            (b"{}", "Leaf.number is missing; .*; and 1 more"),
            (b"", "Leaf: Invalid JSON"),
            (b"[]", "Leaf: .*object"),
            (b"null", "Leaf: .*object"),
            (b'"x"', "Leaf: .*object"),
            (b"\xff\xfe", "Leaf: Invalid JSON"),
            (b"{" * 100_000, "Leaf: Invalid JSON"),
            (b"[" * 100_000, "Leaf: "),
            (b'{"number": ' + b"9" * 5000 + b"}", "Leaf: "),
            (encode(LEAF) + b"x", "Leaf: Invalid JSON"),
        ],
    )
    def test_refusal_of_a_leaf_is_short_and_names_the_place(self, data, place):
        with pytest.raises(MalformedMessage, match=place) as caught:
            decode(Leaf, data)
        assert len(str(caught.value)) < 500

    @pytest.mark.parametrize(
        ("change", "place"),
        [
            ({"kind": "ash"}, "Tree.kind: .*'oak' or 'elm'"),
            ({"kind": ["oak"]}, "Tree.kind: .*'oak' or 'elm'"),
            ({"leaf": None}, "Tree.leaf: .*object"),
            ({"many": {}}, "Tree.many: .*array"),
            ({"many": [1]}, "Tree.many.0: .*object"),
            ({"pair": [1]}, "Tree.pair.1 is missing"),
            ({"pair": [1, "b", 2]}, "Tree.pair: .*at most 2 items"),
            ({"nested": [[1, "2"]]}, "Tree.nested.0.1: .*valid number"),
            ({"maybe": 1}, "Tree.maybe: .*object"),
            ({"perhaps": "3"}, "Tree.perhaps: .*valid integer"),
        ],
    )
    def test_refusal_of_a_tree_names_the_place(self, change, place):
        data = json.dumps({**json.loads(encode(TREE)), **change}).encode()
        with pytest.raises(MalformedMessage, match=place):
            decode(Tree, data)

    @given(st.binary(max_size=200))
    def test_garbage_is_refused_and_nothing_else(self, data):
        with pytest.raises(MalformedMessage):
            decode(Tree, data)

    @given(trees, st.data())
    def test_a_damaged_message_is_refused_or_another_message(self, tree, data):
        content = bytearray(encode(tree))
        place = data.draw(st.integers(0, len(content) - 1))
        content[place] = data.draw(st.integers(0, 255))
        try:
            found = decode(Tree, bytes(content))
        except MalformedMessage:
            return
        assert decode(Tree, encode(found)) == found or "nan" in repr(found)

    def test_value_that_json_cannot_carry_is_a_mistake_of_ours(self):
        with pytest.raises(ValueError, match="Unable to serialize"):
            encode(dataclasses.replace(LEAF, number=object()))


@dataclass
class Desk:
    owner: str
    height: float = 0.5
    drawers: dict[int, Leaf] = dataclasses.field(default_factory=dict)
    seen_at: float = 0.0


class TestRecords:
    @given(trees)
    def test_a_record_survives_a_store_of_json(self, tree):
        assert from_record(Tree, json.loads(json.dumps(to_record(tree)))) == tree

    def test_numbers_of_a_mapping_come_back_as_numbers(self):
        desk = Desk("me", math.inf, {3: LEAF})
        assert from_record(Desk, json.loads(json.dumps(to_record(desk)))) == desk

    def test_some_fields_become_those_of_another_object(self):
        desk, other = Desk("me", 2.0, {1: LEAF}, seen_at=3.0), Desk("you", seen_at=5.0)
        record = fields_to_record(desk, ("owner", "height", "drawers"))
        set_fields(other, json.loads(json.dumps(record)))
        assert other == Desk("me", 2.0, {1: LEAF}, seen_at=5.0)

    @pytest.mark.parametrize(
        ("record", "place"),
        [({"width": 1}, "Desk.width is unknown"), ({"drawers": {"x": 1}}, "valid integer")],
    )
    def test_fields_of_another_class_are_refused(self, record, place):
        with pytest.raises(MalformedMessage, match=place):
            set_fields(Desk("me"), record)
