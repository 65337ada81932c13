"""The public layers: published examples, refusals, round trips."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from ctr_pipeline import preprocessing
from ctr_pipeline.preprocessing import (
    Age,
    Clip,
    DatetimePart,
    Discretization,
    Fill,
    HashedCrossing,
    Hashing,
    IndexLookup,
    IntervalIds,
    Log,
    LogRound,
    Normalizer,
    NumberLookup,
    RoundIdentity,
    SequenceElements,
    Standardize,
    VectorNumbers,
)
from tests.preprocessing.preprocessing_cases import HOSTILE_NUMBERS

TEXT_LAYERS = [
    lambda: Hashing(3),
    lambda: Hashing(1000, missing_id=1000),
    lambda: Hashing(1000, missing_id=1000, function=2),
    lambda: IndexLookup(["a", "line\nbreak", "é"], 2, missing_id=5),
]
TEXT_NUMBER_LAYERS = [
    lambda: NumberLookup(["a", "line\nbreak"], [0.5, 3.0], -1.0, 7.0),
    lambda: NumberLookup([], [], dtype="float64"),
    lambda: DatetimePart("hour", "%Y-%m-%d", 90),
    lambda: Age(0),
]
NUMBER_LAYERS = [
    lambda: Normalizer(1.5, 3.0),
    lambda: Standardize(1.5, 0.3),
    lambda: Standardize(1.5, 0.0, clip=4.0),
    Log,
    lambda: Clip(-1.0, 7.0),
    lambda: Clip(maximum=7.0),
    lambda: Fill(-2.5),
    lambda: Discretization([-1.0, 0.0, 3.5]),
    lambda: Discretization([0.5], missing_id=2),
    lambda: LogRound(16, base=2),
    lambda: LogRound(16, 3, missing_id=16),
    lambda: RoundIdentity(5),
    lambda: RoundIdentity(5, 1, missing_id=5),
    lambda: IntervalIds([0.0, 1.0, np.inf], [2, 0, 1, 2], 3),
]
TEXTS = np.array([["a"], [""], ["é"], ["line\nbreak"], ["other"]], object)


@pytest.mark.slow
@pytest.mark.parametrize("build", [*TEXT_LAYERS, *TEXT_NUMBER_LAYERS, *NUMBER_LAYERS])
def test_config_and_saved_model_round_trip(build, tmp_path):
    layer = build()
    text = isinstance(layer, Hashing | IndexLookup | DatetimePart | Age)
    inputs = tf.constant(TEXTS) if text else tf.constant(HOSTILE_NUMBERS[:, None])
    expected = layer(inputs).numpy()
    again = type(layer).from_config(layer.get_config())
    assert again.get_config() == layer.get_config()
    np.testing.assert_array_equal(again(inputs), expected)
    symbolic = keras.Input((1,), dtype=inputs.dtype.name)
    model = keras.Model(symbolic, layer(symbolic))
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(inputs), expected)
    tf.saved_model.save(model, tmp_path / "saved")
    served = tf.saved_model.load(tmp_path / "saved").signatures["serving_default"](inputs)
    np.testing.assert_array_equal(next(iter(served.values())), expected)


def test_every_public_name_is_a_registered_layer():
    for name, layer in preprocessing.layers.public_layers().items():
        assert getattr(preprocessing, name) is layer
        assert keras.saving.get_registered_name(layer) == f"ctr_pipeline>{name}"
    with pytest.raises(AttributeError, match="no attribute 'Hasher'"):
        preprocessing.Hasher  # noqa: B018 -- the access is the test
    assert {"Hashing", "IndexLookup", "ToSparse"} <= set(dir(preprocessing))
    assert {"Hashing", "IndexLookup", "ToSparse"} <= set(dir(preprocessing.layers))
    with pytest.raises(AttributeError, match="no attribute 'Hasher'"):
        preprocessing.layers.Hasher  # noqa: B018 -- the access is the test


def test_hashing():
    layer = Hashing(num_bins=3)
    letters = [["A"], ["B"], ["C"], ["D"], ["E"]]
    assert layer(letters).numpy().tolist() == [[1], [0], [1], [1], [2]]
    assert layer(tf.constant(letters)).dtype == tf.int64
    numbers = Hashing(100)(np.array([[1, -5], [2**40, 0]]))
    texts = Hashing(100)(np.array([["1", "-5"], [str(2**40), "0"]]))
    np.testing.assert_array_equal(numbers, texts)
    assert Hashing(10, missing_id=10)(["", "a"]).numpy()[0] == 10


def test_hashed_crossing():
    layer = HashedCrossing(1000, missing_id=1000)
    first, second = [["ab"], ["a"], [""], [""], ["a"]], [["c"], ["bc"], ["c"], [""], [""]]
    expected = Hashing(1000)([["2:ab1:c"], ["1:a2:bc"], ["-1:c"], ["x"], ["1:a-"]]).numpy()
    expected[3] = 1000
    np.testing.assert_array_equal(layer([first, second]), expected)
    # Lengths are in bytes, and a text may look like what joins others.
    texts = [["é", "1:a"], ["-", "1:a-"]]
    joined = [["2:é1:-", "3:1:a4:1:a-"]]
    np.testing.assert_array_equal(HashedCrossing(97)(texts), Hashing(97)(joined)[0])
    numbers = np.array([7, -2])
    np.testing.assert_array_equal(
        HashedCrossing(97)([numbers, ["a", "b"]]), Hashing(97)(["1:71:a", "2:-21:b"])
    )


def test_hashed_crossing_of_numbers_by_their_ids():
    buckets = Discretization([0.0, 10.0], missing_id=3)
    layer = HashedCrossing(97, number_layers=[buckets, None])
    inputs = [tf.constant([-1.0, 10.0, np.nan]), tf.constant(["a", "a", "a"])]
    expected = Hashing(97)(["1:01:a", "1:21:a", "-1:a"])
    np.testing.assert_array_equal(layer(inputs), expected)
    again = HashedCrossing.from_config(layer.get_config())
    np.testing.assert_array_equal(again(inputs), expected)


def test_hashed_crossing_in_a_model_round_trips(tmp_path):
    layer = HashedCrossing(97, missing_id=97)
    symbolic = [keras.Input((1,), dtype="string", name=name) for name in ("a", "b")]
    model = keras.Model(symbolic, layer(symbolic))
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    inputs = [tf.constant(TEXTS), tf.constant(TEXTS[::-1])]
    np.testing.assert_array_equal(loaded(inputs), layer(inputs))


def test_number_lookup():
    layer = NumberLookup(["a", "é"], [0.1, 2.0], default=-1.0, missing=9.0, dtype="float64")
    assert layer([["a", "é"], ["other", ""]]).numpy().tolist() == [[0.1, 2.0], [-1.0, 9.0]]
    assert NumberLookup(["7"], [2.5])(np.array([7, 8])).numpy().tolist() == [2.5, 0.0]
    assert np.isnan(NumberLookup(["7"], [2.5])([""]).numpy()[0])


def test_sequence_positions_round_trip():
    layer = SequenceElements(
        Hashing(97), padding_id=98, max_length=2, keep="first", pooling="sum", weights=True
    )
    again = SequenceElements.from_config(layer.get_config())
    assert again.get_config() == layer.get_config()
    texts = tf.constant(["a:2|b|c", "", "||d"])
    for found, expected in zip(again(texts), layer(texts), strict=True):
        np.testing.assert_array_equal(found, expected)
    ids, coefficients = layer(texts)
    a, b, d = Hashing(97)(["a", "b", "d"]).numpy()
    np.testing.assert_array_equal(ids, [[a, b], [98, 98], [d, 98]])
    np.testing.assert_array_equal(coefficients, [[2, 1], [0, 0], [1, 0]])
    with pytest.raises(ValueError, match="pooling"):
        SequenceElements(Hashing(97), padding_id=98, pooling="avg")


def test_vector_numbers_round_trip():
    layer = VectorNumbers(2, delimiter=", ")
    again = VectorNumbers.from_config(layer.get_config())
    assert again.get_config() == layer.get_config()
    texts = ["0.1, -2e3", "", "1, 2, 3", "1, nan", "1e999, 1", "+.5, 1."]
    nan = [np.nan, np.nan]
    expected = [[0.1, -2000], nan, nan, nan, nan, [0.5, 1]]
    for one in (layer, again):
        found = one(texts)
        assert found.dtype == tf.float64
        np.testing.assert_array_equal(found, expected)
    assert VectorNumbers(2, dtype="float32")(texts).dtype == tf.float32
    inputs = keras.Input((), dtype="string")
    model = keras.Model(inputs, layer(inputs))
    assert model.output.shape == (None, 2)
    np.testing.assert_array_equal(model(tf.constant(texts)), expected)
    with pytest.raises(ValueError, match="delimiter"):
        VectorNumbers(2, delimiter="-")


def test_log_round():
    layer = LogRound(num_bins=16, base=2)
    inputs = [[1.2], [1.6], [3.1], [100], [0], [-4]]
    assert layer(np.array(inputs)).numpy().ravel().tolist() == [0, 1, 2, 7, 0, 0]
    assert LogRound(3, default_value=2, base=2)([100.0, np.nan]).numpy().tolist() == [2, 2]
    assert LogRound(20, base=2)(np.array([1000])).numpy().tolist() == [10]


def test_round_identity():
    layer = RoundIdentity(num_buckets=5)
    inputs = np.array([[1.2], [1.6], [0.2], [3.1], [4.9], [0.5], [1.5], [2.5], [-0.2], [-1.0]])
    assert layer(inputs).numpy().ravel().tolist() == [1, 2, 0, 3, 0, 0, 2, 2, 0, 0]


def test_discretization():
    layer = Discretization(bins=[0.0, 1.0, 2.0])
    inputs = [[-1.5, 1.0, 3.4, 0.5], [0.0, 3.0, 1.3, -0.0], [np.inf, -np.inf, 2.0, np.nan]]
    expected = [[0, 2, 3, 1], [1, 3, 2, 1], [3, 0, 3, 3]]
    assert layer(np.array(inputs, np.float32)).numpy().tolist() == expected
    assert layer.num_bins() == 4


def test_a_lookup_tells_how_many_ids_it_gives():
    assert IndexLookup(["A", "B", "C"]).vocab_size() == 4
    assert IndexLookup(["A", "B", "C"], 0, missing_id=3).vocab_size() == 3


def test_float32_inputs_are_compared_in_float64():
    # 0.1 as float32 is above 0.1 as float64.
    assert Discretization([0.1])(tf.constant([0.1], tf.float32)).numpy().tolist() == [1]
    assert Discretization([np.float64(np.float32(0.1)) + 1e-12])([np.float32(0.1)]).numpy() == [0]


def test_normalizer():
    layer = Normalizer(subtractor=1.0, divisor=2.0)
    result = layer([[3.0], [5.0], [7.0]])
    assert result.dtype == tf.float32
    assert result.numpy().tolist() == [[1.0], [2.0], [3.0]]


def test_standardize_clip_fill_log():
    values = np.array([1.0, 4.0, np.nan, np.inf, -np.inf])
    np.testing.assert_array_equal(
        Standardize(1.0, 2.0, clip=3.0)(values), [0, 1.5, np.nan, 3.0, -3.0]
    )
    np.testing.assert_array_equal(Standardize(1.0, 0.0)([1.0, 3.0]), [0, 2])
    np.testing.assert_array_equal(Clip(0.0, 2.0)(values), [1, 2, np.nan, 2, 0])
    np.testing.assert_array_equal(Fill(7.0)(values), [1, 4, 7, np.inf, -np.inf])
    np.testing.assert_allclose(
        Log(dtype="float64")(values), [np.log(2), np.log(5), np.nan, np.inf, 0], rtol=1e-14
    )


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (2, 0), (2, 3, 4)])
def test_any_rank(shape):
    numbers = np.full(shape, 2.5)
    for build in NUMBER_LAYERS:
        assert build()(numbers).shape == shape
    texts = tf.fill(shape, "a")
    for build in [*TEXT_LAYERS, *TEXT_NUMBER_LAYERS]:
        assert build()(texts).shape == shape


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Hashing(0), "num_bins"),
        (lambda: HashedCrossing(0), "num_bins"),
        (lambda: HashedCrossing(5)(["a"]), "1 inputs to cross"),
        (lambda: HashedCrossing(5, number_layers=[None])(["a", "b"]), "2 inputs"),
        (lambda: LogRound(0), "num_bins"),
        (lambda: LogRound(4, base=1), "base"),
        (lambda: RoundIdentity(0), "num_buckets"),
        (lambda: Discretization([]), "empty"),
        (lambda: Discretization([1.0, 1.0]), "ascending"),
        (lambda: Discretization([np.nan]), "ascending"),
        (lambda: Normalizer(1.0, 0.0), "divisor"),
        (lambda: Normalizer(1.0, 1e-320), "divisor"),
        (lambda: Standardize(0.0, -1.0), "standard_deviation"),
        (lambda: Standardize(0.0, 1.0, clip=0.0), "clip"),
        (Clip, "minimum"),
        (lambda: Clip(2.0, 1.0), "above"),
        (lambda: IntervalIds([1.0], [0], 0), "2 ids"),
        (lambda: NumberLookup(["a", "b"], [1.0]), "2 texts"),
        (lambda: NumberLookup(["a", "a"], [1.0, 2.0]), "repeats"),
        (lambda: IntervalIds([1.0, 0.0], [0, 1, 2], 0), "descend"),
    ],
)
def test_wrong_arguments_are_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_wrong_inputs_are_refused():
    with pytest.raises(TypeError, match="expects numbers"):
        Log()(tf.constant(["a"]))
    with pytest.raises(TypeError, match="expects text or integers"):
        Hashing(3)(tf.constant([1.5]))
