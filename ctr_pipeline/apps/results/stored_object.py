"""Rows of results as an object of a store: Parquet or CSV, by its ending."""

from collections.abc import Iterable

import pyarrow as pa

from ctr_pipeline.apps.results.file import check_ending, write_rows
from ctr_pipeline.errors import DataError, RunFolderError
from ctr_pipeline.storage.opening import open_storage
from ctr_pipeline.storage.protocol import ObjectMissingError, check_key


class StoredObjectPlace:
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

    def check(
        self,
        schema: pa.Schema,
        *,
        overwrite: bool,
        reads: Iterable[str] = (),
        spares: Iterable[str] = (),
    ) -> None:
        """As `ResultPlace.check`; data is told apart by its address alone."""
        if self._address in {*reads, *spares}:
            raise RunFolderError(
                "is read by this command, or the model was trained with it",
                place=self._address,
                remedy="Name another output",
            )
        try:
            self._storage.stat(self._key)
        except ObjectMissingError:
            return
        if not overwrite:
            raise RunFolderError(
                "exists already",
                place=self._address,
                remedy="Give --overwrite or name another output",
            )

    def write(self, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
        """As `ResultPlace.write`."""
        with self._storage.create(self._key) as file:
            write_rows(self._key, file, schema, batches)
