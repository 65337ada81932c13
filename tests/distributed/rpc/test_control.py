import dataclasses
import json
import math
from dataclasses import dataclass
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctr_pipeline.distributed.coordination import messages, spec
from ctr_pipeline.distributed.rpc.control import decode, encode
from ctr_pipeline.distributed.rpc.failures import MalformedMessage


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


@dataclass(frozen=True)
class NoMessage:
    anything: dict[str, int]


@dataclass(frozen=True)
class Choice:
    either: int | str


LEAF = Leaf(1, 0.5, "x", True)
TREE = Tree("oak", LEAF, (LEAF, LEAF), (1, "b"), ((1, 2.0),), None, 3)

leaves = st.builds(
    Leaf,
    number=st.integers(min_value=-(2**70), max_value=2**70),
    real=st.floats(allow_nan=False),
    text=st.text(st.characters(exclude_categories=[])),
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

    def test_a_loss_that_is_no_number(self):
        assert math.isnan(decode(Leaf, encode(dataclasses.replace(LEAF, real=math.nan))).real)

    def test_a_whole_float_may_be_written_as_an_integer(self):
        found = decode(Leaf, b'{"number": 1, "real": 2, "text": "", "truth": false}')
        assert type(found.real) is float
        assert found.real == 2.0

    def test_it_is_plain_json(self):
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
            if dataclasses.fields(kind):
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
            (changed(number=1.0), "Leaf.number: int"),
            (changed(number=True), "Leaf.number: int"),
            (changed(number="1"), "Leaf.number: int"),
            (changed(number=None), "Leaf.number: int"),
            (changed(real="0.5"), "Leaf.real: float"),
            (changed(real=True), "Leaf.real: float"),
            (changed(real=10**400), "Leaf.real: too large"),
            (changed(text=1), "Leaf.text: str"),
            (changed(truth=1), "Leaf.truth: bool"),
            (changed(extra=1), "Leaf: extra unknown"),
            (b'{"number": 1}', "Leaf: real, text, truth missing"),
            (encode(LEAF)[:-1] + b', "number": 2}', "a key stands twice"),
            (b"", "Leaf: "),
            (b"[]", "Leaf: an object"),
            (b"null", "Leaf: an object"),
            (b'"x"', "Leaf: an object"),
            (b"\xff\xfe", "Leaf: "),
            (b"{" * 100_000, "Leaf: "),
            (b"[" * 100_000, "Leaf: "),
            (b'{"number": ' + b"9" * 5000 + b"}", "Leaf: "),
            (encode(LEAF) + b"x", "Leaf: "),
        ],
    )
    def test_of_leaves(self, data, place):
        with pytest.raises(MalformedMessage) as caught:
            decode(Leaf, data)
        assert place in str(caught.value)
        assert len(str(caught.value)) < 400

    @pytest.mark.parametrize(
        ("change", "place"),
        [
            ({"kind": "ash"}, "Tree.kind: one of oak, elm"),
            ({"kind": ["oak"]}, "Tree.kind: one of"),
            ({"leaf": None}, "Tree.leaf: an object"),
            ({"many": {}}, "Tree.many: a list"),
            ({"many": [1]}, "Tree.many: an object"),
            ({"pair": [1]}, "Tree.pair: a list of 2"),
            ({"pair": [1, "b", 2]}, "Tree.pair: a list of 2"),
            ({"nested": [[1, "2"]]}, "Tree.nested: float"),
            ({"maybe": 1}, "Tree.maybe: an object"),
            ({"perhaps": "3"}, "Tree.perhaps: int"),
        ],
    )
    def test_of_trees_name_the_place(self, change, place):
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

    @pytest.mark.parametrize("value", [{"a": 1}, None, 3, Leaf, "text"])
    def test_only_messages_are_encoded(self, value):
        with pytest.raises(TypeError):
            encode(value)

    def test_what_json_cannot_carry_is_a_mistake_of_ours(self):
        with pytest.raises(TypeError):
            encode(dataclasses.replace(LEAF, number=b"bytes"))
        with pytest.raises(TypeError, match="no place in a message"):
            decode(NoMessage, b"{}")
        with pytest.raises(TypeError, match="union"):
            decode(Choice, b"{}")
