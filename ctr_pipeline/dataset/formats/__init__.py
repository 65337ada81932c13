"""The formats that rows are read from: one file or folder each, and one line of `specs`."""

from importlib import import_module

from ctr_pipeline.dataset.source import SourceFormat
from ctr_pipeline.specs.source_formats import SOURCE_FORMATS, RegisteredFormat


def _load(registered: RegisteredFormat) -> SourceFormat:
    module, _, name = registered.code.partition(":")
    loaded: SourceFormat = getattr(import_module(module), name)(registered.keys)
    return loaded


FORMATS = tuple(_load(registered) for registered in SOURCE_FORMATS)
"""Formats in the order in which they are asked for an address or file; the last takes any."""
