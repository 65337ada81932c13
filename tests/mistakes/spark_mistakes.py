"""Mistakes about Spark; none of them gets so far that it starts."""

import decimal
import sys
import types
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from tests.mistakes.spoiled_world import CHECK, Case, World, lines

SPLITS = ("train", "valid", "test")
ANALYZE = ("analyze", "c.yaml")


def spark(
    change: Callable[[World], object] = lambda _: None, /, **values: Any
) -> Callable[[World], None]:
    """Spark computes, the splits have files of their own; the config has these values."""

    def spoil(world: World) -> None:
        for name in SPLITS:
            world.write(f"{name}.csv", world.folder.joinpath("rows.csv").read_bytes())
        files = {f"data__{name}": f"{name}.csv" for name in SPLITS}
        world.config(**{"analysis__engine": "spark", **files, **values})
        change(world)

    return spoil


def _has_pyspark(world: World) -> None:
    world.monkeypatch.setitem(sys.modules, "pyspark", types.ModuleType("pyspark"))


def _no_pyspark(world: World) -> None:
    world.monkeypatch.setitem(sys.modules, "pyspark", None)


def _no_java(world: World) -> None:
    _has_pyspark(world)
    world.monkeypatch.delenv("JAVA_HOME", raising=False)
    world.monkeypatch.setenv("PATH", str(world.folder))


def _wrong_java_home(world: World) -> None:
    _has_pyspark(world)
    world.monkeypatch.setenv("JAVA_HOME", str(world.folder / "nothing"))


def _old_java(world: World) -> None:
    _has_pyspark(world)
    java = world.folder / "old" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.20\" 2023-07-18' >&2\n")
    java.chmod(0o755)
    world.monkeypatch.setenv("JAVA_HOME", str(java.parents[1]))


def _no_hadoop_conf(world: World) -> None:
    for name in ("HADOOP_CONF_DIR", "YARN_CONF_DIR"):
        world.monkeypatch.delenv(name, raising=False)


def _decimals_as_weights(world: World) -> None:
    _has_pyspark(world)
    # Decimals of so many digits are rounded otherwise in Java.
    times = pa.array([decimal.Decimal(n + 1) for n in range(300)], pa.decimal128(20, 2))
    world.parquet(times=times)


ROW_MISTAKES = (
    Case(
        "spark_not_installed",
        spark(_no_pyspark),
        ("analysis.engine", "PySpark", "not installed", "pip install 'ctrpipe[spark]'"),
        CHECK,
    ),
    Case(
        "spark_without_java",
        spark(_no_java),
        ("analysis.engine", "needs Java", "Install Java 17", "JAVA_HOME"),
        CHECK,
    ),
    Case(
        "spark_java_home_is_wrong",
        spark(_wrong_java_home),
        ("nothing/bin/java' does not run", "JAVA_HOME"),
        CHECK,
    ),
    Case(
        "spark_java_too_old",
        spark(_old_java),
        ("needs Java 17 or later", "11.0.20", "Install Java 17"),
        CHECK,
    ),
    Case(
        "spark_no_master",
        spark(analysis__master="spark://127.0.0.1:9"),
        ("analysis.master", "no Spark master answers at 127.0.0.1:9", "write local[2]"),
        CHECK,
    ),
    Case(
        "spark_no_kubernetes",
        spark(analysis__master="k8s://https://127.0.0.1:9"),
        ("no Spark master answers at 127.0.0.1:9",),
        CHECK,
    ),
    Case(
        "spark_yarn_without_hadoop",
        spark(_no_hadoop_conf, analysis__master="yarn"),
        ("HADOOP_CONF_DIR", "not set", "yarn-site.xml"),
        CHECK,
    ),
    Case(
        "spark_master_is_none",
        spark(analysis__master="http://host"),
        ("analysis.master", "'http://host' names no Spark", "spark://host:7077"),
        CHECK,
    ),
    Case(
        "spark_setting_of_something_else",
        spark(analysis__conf={"memory": "1g"}),
        ("analysis.conf", "'memory' is no setting of Spark", "begin with spark."),
        CHECK,
    ),
    Case(
        "spark_master_twice",
        spark(analysis__conf={"spark.master": "local"}),
        ("'spark.master' cannot be set here", "use analysis.master"),
        CHECK,
    ),
    Case(
        "spark_secret_in_config",
        spark(analysis__conf={"spark.hadoop.fs.s3a.secret.key": "x"}),
        ("credentials do not belong in a config", "spark-defaults.conf"),
        CHECK,
    ),
    Case(
        "spark_master_without_engine",
        spark(analysis={"master": "local[4]"}),
        ("analysis", "belong to engine: spark"),
        CHECK,
    ),
    Case(
        "spark_of_unknown_name",
        spark(analysis__engine="sparc"),
        ("analysis.engine", "spark"),
        CHECK,
    ),
    Case(
        "spark_lines_by_order",
        spark(data__train="rows.csv", data__valid=None, data__test=None),
        ("data.split.by", "cannot divide these rows by order", "data.valid and data.test"),
        CHECK,
        tried=("analysis=null",),
    ),
    Case(
        "spark_by_random",
        spark(
            World.parquet,
            data__train="rows.parquet",
            data__valid=None,
            data__test=None,
            data__split={"by": "random"},
        ),
        ("data.split.by", "by random", "leave analysis out"),
        CHECK,
        tried=("analysis=null",),
    ),
    Case(
        "spark_hidden_file",
        spark(lambda world: world.rows(lines(), "_more.csv"), data__test="_more.csv"),
        ("_more.csv", "passes over files", "Rename the file"),
        CHECK,
    ),
    Case(
        "spark_weights_read_otherwise",
        spark(
            _decimals_as_weights,
            data__train="rows.parquet",
            data__valid=None,
            data__test=None,
            data__weight="times",
        ),
        ("rows.parquet, column 'times'", "has the type decimal128(20, 2)", "computed here"),
        ANALYZE,
    ),
)
