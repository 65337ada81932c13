"""The formats that rows are read from.

The config has to know their names; their code is imported when rows are read.
"""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class RegisteredFormat:
    """One format, as it is registered.

    Attributes:
        code: `module:class` of a `dataset.source.SourceFormat`.
        keys: The values of `data.format` that stand for it; none for tables, which have addresses.
    """

    code: str
    keys: tuple[str, ...] = ()


_QUERY = re.compile(r"\s*(--[^\n]*\n\s*)*\(*\s*(SELECT|WITH|FROM|VALUES)\s", re.IGNORECASE)


def is_query(text: str) -> bool:
    """Whether a text begins as a SELECT does, and is no path."""
    return bool(_QUERY.match(text))


_FORMATS = "ctr_pipeline.dataset.formats"

SOURCE_FORMATS = (
    RegisteredFormat(f"{_FORMATS}.query.format:QueryFormat"),
    RegisteredFormat(f"{_FORMATS}.maxcompute.format:MaxComputeFormat"),
    RegisteredFormat(f"{_FORMATS}.recordio.format:RecordIOFormat", ("recordio",)),
    RegisteredFormat(f"{_FORMATS}.parquet.format:ParquetFormat", ("parquet",)),
    RegisteredFormat(f"{_FORMATS}.text.format:TextFormat", ("csv", "tsv")),
)
"""Formats in the order in which they are asked for an address or file; text takes any."""
