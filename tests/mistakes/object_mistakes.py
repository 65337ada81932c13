"""What users get wrong about addresses of objects in stores."""

import sys
from collections.abc import Callable
from typing import Any

import fsspec
from spoiled_world import CHECK, PREDICT, Case, World

ROWS = "memory://bucket/rows.csv"


def objects(
    change: Callable[[World, Any], object] = lambda world, store: None, /, **values: Any
) -> Callable[[World], None]:
    """The rows are in an object; then this is changed."""

    def spoil(world: World) -> None:
        store = fsspec.filesystem("memory")
        world.cleanups.append(store.store.clear)
        store.put(str(world.folder / "rows.csv"), "/bucket/rows.csv")
        world.config(**{"data__train": ROWS, **values})
        change(world, store)

    return spoil


def address(train: str) -> Callable[[World], None]:
    """The config names this one."""
    return objects(data__train=train)


def _refuse(world: World, store: Any) -> None:
    def info(_store: Any, path: str, **_options: Any) -> Any:
        raise PermissionError("Access Denied")

    world.monkeypatch.setattr(type(store), "info", info)


def _without_package(world: World, _store: Any) -> None:
    world.monkeypatch.setitem(sys.modules, "s3fs", None)


ROW_MISTAKES = (
    Case(
        "object_scheme",
        address("s33://bucket/rows.csv"),
        ("data.train", "'s33://' is no scheme that is read", "Did you mean 's3://'"),
        CHECK,
    ),
    Case(
        "object_password",
        address("s3://AKIA:hunter2@bucket/rows.csv"),
        ("data.train", "holds a password or a signature", "AWS_ACCESS_KEY_ID"),
    ),
    Case(
        "object_signature",
        address("https://bucket.example/rows.csv?X-Amz-Signature=0123"),
        ("data.train", "holds a password or a signature", "Take it out of the address"),
    ),
    Case(
        "object_chained",
        address("memory://bucket/rows.zip::memory://bucket/rows.csv"),
        ("data.train", "chains several file systems", "Name the object itself"),
    ),
    Case("object_without_name", address("memory:///"), ("data.train", "names no object"), CHECK),
    Case(
        "object_missing",
        address("memory://bucket/row.csv"),
        ("data.train", "no such object: 'memory://bucket/row.csv'", "spelling"),
    ),
    Case(
        "object_pattern",
        address("memory://bucket/*.parquet"),
        ("data.train", "no object matches 'memory://bucket/*.parquet'", "pattern"),
    ),
    Case(
        "object_folder",
        address("memory://bucket"),
        ("data.train", "is a folder, not a file", "memory://bucket/*.parquet"),
    ),
    Case(
        "object_empty",
        objects(lambda _, store: store.pipe("/bucket/rows.csv", b"")),
        (ROWS, "is empty"),
    ),
    Case(
        "object_bad_row",
        objects(lambda _, store: store.pipe("/bucket/rows.csv", b"click,price,city\n1,2,a\n1,2\n")),
        (f"{ROWS}, row 3", "2 instead of 3"),
        unset="half of the rows are bad",
    ),
    Case(
        "object_damaged",
        objects(lambda _, store: store.pipe("/bucket/rows.csv", b"\x1f\x8b\x08\0half a file")),
        (ROWS, "truncated or damaged"),
    ),
    Case("object_refused", objects(_refuse), (ROWS, "may not be read", "Access Denied")),
    Case(
        "object_package",
        objects(_without_package, data__train="s3://bucket/rows.csv"),
        ("s3://bucket/rows.csv", "need the package s3fs", "pip install s3fs"),
    ),
)

COMMAND_MISTAKES = (
    Case(
        "object_to_predict",
        objects(data__train="rows.csv"),
        ("--data", "no such object: 'memory://bucket/new.csv'"),
        tuple("memory://bucket/new.csv" if word == "new.csv" else word for word in PREDICT),
        trained=True,
    ),
)
