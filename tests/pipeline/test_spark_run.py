"""`ctrpipe analyze` with Spark finds what it finds without: statistics, vocabularies and drift."""

import gzip
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from ctr_pipeline.cli.main import main
from tests.analysis.engine_rows import assert_close
from tests.spark.spark_here import SPARK, skip_without_spark

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module", autouse=True)
def _spark():
    skip_without_spark()


HOSTILE = ("${price}", "c`i't\"y", "日本 n", "A.b", "a.B")
CITIES = (
    "Köln",
    '"quoted", with a comma',
    "it's",
    "'; DROP TABLE x; --",
    " blank ",
    "\\t",
    "",
    "NA",
)


TIMES = "ti`m'es ${x}"


def texts(num_rows: int, start: int) -> list[dict[str, str]]:
    """Rows as texts; what is hard to read is among them."""
    weights = ["0", " 2.5 ", "1e-05", "-0", "\u3000.1", "123456.789", "1"]
    prices = ["", "NA", " 7 ", "-0", "1e-05", "inf", "nan", "9007199254740993", "5e-324", "\u30003"]
    return [
        {
            "click": str(int(n * 7919 % 100 < 30)),
            HOSTILE[0]: prices[n * 31 % len(prices)],
            HOSTILE[1]: CITIES[n * 13 % len(CITIES)],
            HOSTILE[2]: f"{n * n % 97}.{n % 7}5",
            HOSTILE[3]: f"v{n % 50}",
            HOSTILE[4]: f"w{n * n % 11}",
            TIMES: weights[n * n % len(weights)],
        }
        for n in range(start, start + num_rows)
    ]


def quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if set(text) & set('",') else text


def as_csv(rows: list[dict[str, str]], names: list[str]) -> str:
    lines = [names, *([row[name] for name in names] for row in rows)]
    return "\r\n\r\n".join(",".join(map(quoted, line)) for line in lines)


def analyze(folder, config: dict, *, by_spark: bool) -> tuple[dict, list[pa.Table]]:
    """The statistics and the vocabularies."""
    run = folder / ("there" if by_spark else "here")
    if by_spark:
        config = {**config, "analysis": SPARK.model_dump(include={"engine", "master", "conf"})}
    path = folder / f"{run.name}.yaml"
    path.write_text(yaml.safe_dump({**config, "output": str(run)}))
    assert main(["analyze", str(path), "-q"]) == 0
    found = json.loads((run / "statistics.json").read_text())
    # The fingerprint of the rows is of what was read here; the checksum is of the whole.
    del found["crc32"], found["fingerprint"]
    tables = [pq.read_table(file) for file in sorted((run / "vocabularies").iterdir())]
    return found, tables


def assert_the_same(folder, config: dict) -> dict:
    here, there = (analyze(folder, config, by_spark=by_spark) for by_spark in (False, True))
    assert_close(there[0], here[0])
    for found, expected in zip(there[1], here[1], strict=True):
        assert found.schema == expected.schema
        assert_close(found.to_pydict(), expected.to_pydict())
    return there[0]


@pytest.mark.parametrize("weight", [pytest.param(None, marks=pytest.mark.nightly), TIMES])
def test_spark_equals_local_for_text_files_with_names_and_values_of_all_kinds(tmp_path, weight):
    names = ["click", *HOSTILE, TIMES]
    for place, split in enumerate(("train-0", "train-1", "valid", "test")):
        # One file has its columns in another order.
        order = [*reversed(names)] if split == "train-1" else names
        content = as_csv(texts(400, place * 400), order).encode("utf-8-sig")
        (tmp_path / f"{split}.csv.gz").write_bytes(gzip.compress(content))
    config = {
        "data": {
            "train": str(tmp_path / "train-*.csv.gz"),
            **{name: str(tmp_path / f"{name}.csv.gz") for name in ("valid", "test")},
            "label": "click",
            "weight": weight,
            "missing_values": ["NA", "3.0"],
        },
        "features": [
            {
                "columns": HOSTILE[0],
                "number": ["standardize"],
                "id": {"bucketize": {"quantiles": 5}},
            },
            {"columns": HOSTILE[2], "number": [{"clip": {"maximum": 50}}, "normalize"]},
            {"columns": HOSTILE[1], "id": "vocabulary", "number": "target_encode"},
            {"columns": [HOSTILE[3], HOSTILE[4]], "id": {"vocabulary": {"min_count": 9}}},
        ],
    }
    found = assert_the_same(tmp_path, config)
    assert set(found["drift"]) == {"valid", "test"}
    assert found["columns"][HOSTILE[0]]["num_infinite"] == 80
    assert (found["weighted_label_rate"] is None) is (weight is None)


@pytest.mark.parametrize(
    ("weight", "split"),
    [
        (None, {}),
        pytest.param("times", {}, marks=pytest.mark.nightly),
        (None, {"by": "hash", "column": "user_id"}),
    ],
)
def test_spark_equals_local_for_divided_parquet_files_with_everything_decided(
    tmp_path, weight, split
):
    chance = np.random.default_rng(3)
    for day in ("1", "2", "3"):
        folder = tmp_path / "clicks" / f"ds={day}"
        folder.mkdir(parents=True)
        rows = pa.table(
            {
                "click": chance.random(300) < 0.3,
                "price": pa.array(chance.integers(0, 60, 300) / 8, mask=chance.random(300) < 0.1),
                "city": pa.array([f"c{v}" for v in chance.zipf(1.6, 300) % 40], pa.large_string()),
                "user_id": chance.integers(0, 80, 300),
                **({weight: pa.array(chance.random(300) * 9, pa.float32())} if weight else {}),
            }
        )
        pq.write_table(rows, folder / "part-0.parquet")
    config = {
        "data": {
            "train": str(tmp_path / "clicks"),
            "label": "click",
            "weight": weight,
            "missing_values": ["5", "7.50"],
            "split": {"valid": 0.2, "test": 0.2, **split},
        },
    }
    if split:
        # Of numbers the hash is one of their texts.
        config["features"] = ["auto", {"columns": "user_id", "id": "vocabulary"}]
    found = assert_the_same(tmp_path, config)
    assert split or found["num_rows"] == 540


def test_spark_equals_local_for_lines_divided_by_the_hash_of_hostile_texts(tmp_path):
    names = ["click", *HOSTILE, TIMES]
    (tmp_path / "rows.csv").write_bytes(as_csv(texts(900, 0), names).encode())
    config = {
        "data": {
            "train": str(tmp_path / "rows.csv"),
            "label": "click",
            "missing_values": ["NA"],
            "split": {"by": "hash", "column": HOSTILE[1], "valid": 0.3, "test": 0.3},
        },
        "features": [{"columns": [HOSTILE[1], HOSTILE[3]], "id": "vocabulary"}],
    }
    found = assert_the_same(tmp_path, config)
    assert set(found["drift"]) == {"valid", "test"}
    assert 0 < found["num_rows"] < 900


PAIRS = (
    "age= 31 ;city=Köln;;other=1;other=2",
    " city = a=b ; age=",
    "age=NA;city=NA;\u3000",
    "age=-0;city=x'; DROP TABLE y",
    "",
    "NA",
    "age=1e2;city=a\\Eb",
    # Bad rows: no pair, no key, a key twice, no number.
    "age=7;city",
    "=7;city=a",
    "age=7; age=8",
    "age=7;city=a;city=a",
    "age=7y",
)


@pytest.mark.parametrize("kept_as", ["csv", pytest.param("parquet", marks=pytest.mark.nightly)])
def test_spark_equals_local_for_keys_in_texts_of_pairs(tmp_path, kept_as):
    """Also the label and the weights, where the rows are Parquet files."""
    cut = {"column": "profile", "pairs": ";", "value": "=", "keys": ["age", "city"]}
    lines = [(n * 7919 % 100 < 30, PAIRS[n % len(PAIRS)], n % 4) for n in range(600)]
    data = {"label": "click", "missing_values": ["NA"], "key_value": cut}
    data |= {"bad_rows": "skip", "max_bad_fraction": 0.6}
    if kept_as == "csv":
        rows = [f"{click:d},{profile}" for click, profile, _ in lines]
        for split in ("train", "valid", "test"):
            data[split] = str(tmp_path / f"{split}.csv")
            (tmp_path / f"{split}.csv").write_text("\n".join(["click,profile", *rows]) + "\n")
    else:
        texts = [f"click={click:d};times={times};{text}" for click, text, times in lines]
        cut["keys"] += ["click", "times"]
        data |= {"train": str(tmp_path / "rows.parquet"), "weight": "times"}
        pq.write_table(pa.table({"profile": pa.array(texts, pa.large_string())}), data["train"])
    features = [
        {"columns": "age", "number": ["standardize"]},
        {"columns": "city", "id": "vocabulary", "number": "target_encode"},
    ]
    found = assert_the_same(tmp_path, {"data": data, "features": features})
    assert found["columns"]["city"]["num_missing"] > 0
    assert 0 < found["num_rows"] < 600


def test_rows_over_several_lines_are_refused(tmp_path, capfd):
    for split in ("train", "valid", "test"):
        lines = [f'{n % 2},"a{n % 3}\nb"' for n in range(60)]
        (tmp_path / f"{split}.csv").write_text("click,city\n" + "\n".join(lines) + "\n")
    config = {
        "data": {
            **{name: str(tmp_path / f"{name}.csv") for name in ("train", "valid", "test")},
            "label": "click",
        },
        "features": [{"columns": "city", "id": "vocabulary"}],
        "analysis": {"engine": "spark"},
        "output": str(tmp_path / "run"),
    }
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(config))
    assert main(["analyze", str(tmp_path / "c.yaml"), "-q"]) == 1
    err = capfd.readouterr().err
    assert "line ends" in err
    assert "ctrpipe convert" in err
    assert len(err.splitlines()) == 1
