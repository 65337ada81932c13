"""The formats that rows are read from: one file or folder each, and one line here."""

from ctr_pipeline.dataset.formats.databases.format import DatabaseFormat
from ctr_pipeline.dataset.formats.maxcompute.format import MaxComputeFormat
from ctr_pipeline.dataset.formats.parquet.format import ParquetFormat
from ctr_pipeline.dataset.formats.recordio.format import RecordIOFormat
from ctr_pipeline.dataset.formats.text.format import TextFormat
from ctr_pipeline.dataset.source import SourceFormat

FORMATS: tuple[SourceFormat, ...] = (
    MaxComputeFormat(),
    DatabaseFormat(),
    RecordIOFormat(),
    ParquetFormat(),
    TextFormat(),
)
"""In the order in which they are asked for an address or a file; text, the last one, takes any."""
