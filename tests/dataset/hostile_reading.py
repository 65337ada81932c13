"""Reads files of strangers in a process of its own, which may die of them, and tells what came.

As a program: `python hostile_reading.py ADDRESS…` writes one line of JSON for each.
"""

import gc
import json
import sys
from concurrent.futures import Executor, Future
from pathlib import Path

from ctr_pipeline.config.models import DataConfig
from ctr_pipeline.dataset.bad_rows import BadRowLedger
from ctr_pipeline.dataset.columns import ReadingPlan
from ctr_pipeline.dataset.inspection import inspect_source
from ctr_pipeline.dataset.rows import read_good_rows
from ctr_pipeline.errors import CtrPipelineError


class Inline(Executor):
    """Does at once what it is given; a thread for each of thousands of files takes longer."""

    def submit(self, function, *args):
        future = Future()
        try:
            future.set_result(function(*args))
        except BaseException as error:  # noqa: BLE001  told by `result`
            future.set_exception(error)
        return future


def read_all(address, label="label"):
    """How many good rows there are, all columns that fit a feature read as what they look like."""
    data = DataConfig(train=address, label=label, bad_rows="skip", max_bad_fraction=1.0)
    source = inspect_source(data)
    types = {name: kind for name, kind in source.inferred_types.items() if name != label}
    plan = ReadingPlan(
        label, types, frozenset(), ("",), frozenset(), as_dictionaries=frozenset(types)
    )
    ledger = BadRowLedger("skip", 1.0)
    units = [unit for split in source.files for unit in source.units(split)]
    tables = read_good_rows(source, units, plan, ledger, Inline(), max_ahead=1)
    return sum(table.num_rows for table in tables)


def outcome_of(address):
    """A number of rows, or the refusal."""
    try:
        return {"rows": read_all(address)}
    except CtrPipelineError as error:
        return {"refusal": str(error), "remedy": error.remedy, "place": error.place}


def memory_bytes(what):
    """`VmRSS`, the memory of this process, or `VmHWM`, the most since `forget_peak`."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(what))


def forget_peak():
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")


def main(addresses):
    for address in addresses:
        forget_peak()
        before = memory_bytes("VmRSS")
        outcome = outcome_of(address)
        peak = memory_bytes("VmHWM") - before
        sys.stdout.write(json.dumps({"address": address, "peak_bytes": peak, **outcome}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
