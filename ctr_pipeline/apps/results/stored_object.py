"""Rows of results as an object of a store: Parquet or CSV, by its ending."""

from collections.abc import Iterable

import pyarrow as pa

from ctr_pipeline.apps.results.file import check_ending, write_rows
from ctr_pipeline.apps.results.target import ResultPlan
from ctr_pipeline.errors import DataError
from ctr_pipeline.storage.opening import open_storage
from ctr_pipeline.storage.protocol import ObjectMissingError, check_key


class StoredObjectTarget:
    """`s3://bucket/scores/today.parquet`."""

    def __init__(self, address: str) -> None:
        check_ending(address)
        self._address = address
        folder, _, self._key = address.rpartition("/")
        try:
            check_key(self._key)
        except ValueError:
            raise DataError(
                f"'{self._key}' is no name of an object",
                place=address,
                remedy="Take letters, digits and ._=- for it",
            ) from None
        self._storage = open_storage(folder)

    def check(self, results: ResultPlan) -> None:
        """As `ResultTarget.check`; data is told apart by its address alone."""
        results.require_other_data(self._address)
        try:
            self._storage.stat(self._key)
        except ObjectMissingError:
            return
        results.require_overwrite(self._address)

    def write(self, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
        """As `ResultTarget.write`."""
        with self._storage.create(self._key) as file:
            write_rows(self._key, file, schema, batches)
