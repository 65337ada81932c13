"""What users get wrong about folders of key=value."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.mistakes.spoiled_world import CHECK, Case, World


def folders(
    change: Callable[[World], object] = lambda _: None, /, **values: Any
) -> Callable[[World], None]:
    """The rows are in the folders of two days; then this is changed."""

    def spoil(world: World) -> None:
        for day in ("1", "2"):
            part(world, f"clicks/ds={day}/part-0.parquet")
        world.config(**{"data__train": "clicks/", **values})
        change(world)

    return spoil


def part(world: World, name: str, **columns: Any) -> None:
    """There is one more file."""
    (world.folder / name).parent.mkdir(parents=True, exist_ok=True)
    world.parquet(name, **columns)


def _empty(world: World) -> None:
    for path in Path(world.folder, "clicks").rglob("*.parquet"):
        path.unlink()


NO_PARQUET = "is no Parquet file by its name"

ROW_MISTAKES = (
    Case(
        "partition_and_column",
        folders(lambda world: part(world, "clicks/ds=2/part-1.parquet", ds=["2"] * 300)),
        ("clicks/ds=2/part-1.parquet", "own column 'ds'", "rename the folders"),
    ),
    Case(
        "partition_key_twice",
        folders(lambda world: part(world, "clicks/ds=3/ds=4/part-0.parquet")),
        ("clicks/ds=3/ds=4/part-0.parquet", "two of its folders are named 'ds=…'"),
    ),
    Case(
        "partition_lacking",
        folders(lambda world: part(world, "clicks/part-9.parquet")),
        ("clicks/part-9.parquet", "lacks 'ds'", "same columns"),
        CHECK,
    ),
    Case(
        "partition_with_text",
        folders(lambda world: world.write("clicks/ds=2/part-1.csv", "click,price\n1,2\n")),
        ("clicks/ds=2/part-1.csv", NO_PARQUET, "glob"),
    ),
    Case(
        "partition_damaged",
        folders(lambda world: world.write("clicks/ds=2/part-1.parquet", "PAR1")),
        ("clicks/ds=2/part-1.parquet", "truncated or damaged"),
        CHECK,
    ),
    Case("partition_without_files", folders(_empty), ("data.train", "no file is in the folder")),
    Case(
        "partition_column_misspelt",
        folders(features=[{"columns": "dss", "id": "vocabulary"}]),
        ("no column 'dss'", "'ds'"),
        CHECK,
    ),
    Case(
        "partition_no_number",
        folders(
            lambda world: part(world, "clicks/ds=x/part-0.parquet"),
            features=[{"columns": "ds", "number": "standardize"}],
        ),
        ("clicks/ds=x/part-0.parquet, row 1, column 'ds'", "not a number: 'x'"),
        unset="a third of the rows is bad",
    ),
    Case(
        "folder_without_partitions",
        folders(lambda world: part(world, "plain/a.parquet"), data__train="plain"),
        ("data.train", "'plain' is a folder", "plain/*.parquet"),
    ),
)
