"""What users get wrong about addresses of objects in stores."""

from collections.abc import Callable
from typing import Any

from obstore import exceptions

from ctr_pipeline.storage import object_store
from tests.mistakes.spoiled_world import CHECK, PREDICT, Case, World
from tests.storage.memory_buckets import MemoryBuckets

ROWS = "s3://bucket/rows.csv"


def objects(
    change: Callable[[World, MemoryBuckets], object] = lambda world, buckets: None,
    /,
    **values: Any,
) -> Callable[[World], None]:
    """The rows are in an object; then this is changed."""

    def spoil(world: World) -> None:
        buckets = MemoryBuckets(world.monkeypatch)
        buckets.put(ROWS, (world.folder / "rows.csv").read_bytes())
        world.config(**{"data__train": ROWS, **values})
        change(world, buckets)

    return spoil


def address(train: str) -> Callable[[World], None]:
    """The config names this one."""
    return objects(data__train=train)


def _refuse(world: World, _buckets: MemoryBuckets) -> None:
    def head(_store: Any, key: str) -> Any:
        raise exceptions.PermissionDeniedError(
            f"not allowed for path {key}: Server returned non-2xx status code: 403 Forbidden: "
        )

    world.monkeypatch.setattr(object_store.obstore, "head", head)


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
        address("s3://bucket/rows.zip::s3://bucket/rows.csv"),
        ("data.train", "chains several file systems", "Name the object itself"),
    ),
    Case("object_without_name", address("s3://"), ("data.train", "names no object"), CHECK),
    Case(
        "object_missing",
        address("s3://bucket/row.csv"),
        ("data.train", "no such object: 's3://bucket/row.csv'", "spelling"),
    ),
    Case(
        "object_pattern",
        address("s3://bucket/*.parquet"),
        ("data.train", "no object matches 's3://bucket/*.parquet'", "pattern"),
    ),
    Case(
        "object_folder",
        address("s3://bucket"),
        ("data.train", "is a folder, not a file", "s3://bucket/*.parquet"),
    ),
    Case(
        "object_empty",
        objects(lambda _, buckets: buckets.put(ROWS, b"")),
        (ROWS, "is empty"),
    ),
    Case(
        "object_bad_row",
        objects(lambda _, buckets: buckets.put(ROWS, b"click,price,city\n1,2,a\n1,2\n")),
        (f"{ROWS}, row 3", "2 instead of 3"),
        unset="half of the rows are bad",
    ),
    Case(
        "object_damaged",
        objects(lambda _, buckets: buckets.put(ROWS, b"\x1f\x8b\x08\0half a file")),
        (ROWS, "truncated or damaged"),
    ),
    Case("object_refused", objects(_refuse), (ROWS, "the store refuses it", "AWS_ACCESS_KEY_ID")),
)

COMMAND_MISTAKES = (
    Case(
        "object_to_predict",
        objects(data__train="rows.csv"),
        ("--data", "no such object: 's3://bucket/new.csv'"),
        tuple("s3://bucket/new.csv" if word == "new.csv" else word for word in PREDICT),
        trained=True,
    ),
)
