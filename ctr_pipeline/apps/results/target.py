"""A place for rows of results, by its address. A new kind is a module here, and a line below."""

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol, cast

import pyarrow as pa

from ctr_pipeline.errors import DataError, RunFolderError
from ctr_pipeline.storage.cloud_environment import STORES


@dataclass(frozen=True)
class ResultPlan:
    """What a command is about to write.

    Attributes:
        schema: The columns of the results.
        overwrite: Whether results that are there may be replaced.
        reads: Data that the command reads: files, globs, tables.
        spares: Data that has to stay, such as what a model was trained on.
    """

    schema: pa.Schema
    overwrite: bool = False
    reads: tuple[str, ...] = ()
    spares: tuple[str, ...] = ()

    def require_other_data(self, address: str) -> None:
        """Raises RunFolderError if the address is that of data; other names of it go unseen."""
        if address in {data.rstrip("/") for data in (*self.reads, *self.spares)}:
            raise RunFolderError(
                "is read by this command, or the model was trained with it",
                place=address,
                remedy="Name another output",
            )

    def require_overwrite(self, address: str, what: str = "exists already") -> None:
        """Raises RunFolderError unless results that are at the address may be replaced."""
        if not self.overwrite:
            raise RunFolderError(
                what, place=address, remedy="Give --overwrite or name another output"
            )


class ResultTarget(Protocol):
    """A file, an object or a table that holds the results of one command and nothing else.

    Results are whole or absent: what fails or is killed leaves the place as it was. Writing the
    same results again replaces them.
    """

    def check(self, results: ResultPlan) -> None:
        """Refuses the place before any work is spent on the results.

        Raises:
            CtrPipelineError: Nothing can be written there, it holds something else, or it holds
                results that may not be replaced.
        """

    def write(self, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
        """Writes all rows.

        Args:
            schema: The columns of every batch.
            batches: May raise, and then nothing is written.

        Raises:
            CtrPipelineError: They cannot be written.
        """


RESULT_PLACES: Mapping[str, str] = {
    "": "ctr_pipeline.apps.results.file:FileTarget",
    **dict.fromkeys(STORES, "ctr_pipeline.apps.results.stored_object:StoredObjectTarget"),
    "odps": "ctr_pipeline.apps.results.maxcompute_table:MaxComputeTarget",
    "duckdb": "ctr_pipeline.apps.results.duckdb_table:DuckDbTarget",
}
"""The class of each scheme of addresses; a path has none."""


def open_target(output: str) -> ResultTarget:
    """The place that an address or a path names; nothing is read or written yet.

    Args:
        output: `scores.parquet`, `s3://bucket/scores.parquet`, `duckdb://shop.duckdb/scores`,
            `odps://project/scores/ds=20240101`.

    Raises:
        DataError: It names no place for results.
    """
    scheme, separator, _ = output.partition("://")
    scheme = scheme if separator else ""
    if scheme not in RESULT_PLACES:
        near = difflib.get_close_matches(scheme.lower(), RESULT_PLACES, n=1, cutoff=0.5)
        known = ", ".join(f"{one}://" for one in RESULT_PLACES if one)
        raise DataError(
            f"results cannot be written to '{scheme}://'",
            place=output,
            remedy=f"Did you mean '{near[0]}://'?"
            if near
            else f"Name a file, or an address that begins with one of {known}",
        )
    module, _, name = RESULT_PLACES[scheme].partition(":")
    opened = cast("Callable[[str], ResultTarget]", getattr(import_module(module), name))
    return opened(output)
