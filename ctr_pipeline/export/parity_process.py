"""Scores raw rows with an export, in a process that has TensorFlow alone.

Run by path, not imported: `python -I parity_process.py`. It stands for a server that knows nothing
of this package. One line of standard input, a JSON list, names the export, the request and the
response, once they are there; if the input ends without one, so does the process. The request is an
.npz without pickles: `typed.I` and `texts.I` are column I as the two signatures take it, a text
column being two arrays (`.data`, all bytes in one, and `.offsets`); `names` are the inputs' names
as UTF-8 in one array of bytes, one a line. The response holds the logits and probabilities of both
signatures and TensorFlow's version.
"""

import gc
import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

# Keras comes along with TensorFlow, looks for these, and goes on without them; nothing here uses
# them, and loading them would take more than a third of the time until TensorFlow is there.
sys.modules.update(dict.fromkeys(("matplotlib", "pandas", "sklearn")))  # type: ignore[arg-type]
# A sixth of the rest would be searches for cycles among modules' own objects.
gc.disable()

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

gc.freeze()
gc.enable()

# Rows of one request: more than one and less than all, with another number in the last one.
_REQUEST_ROWS = 257


def read_column(request: Any, key: str) -> Any:
    """Column `key` as an array that TensorFlow takes: float64, or objects that are bytes."""
    if key in request:
        return request[key]
    data = request[f"{key}.data"].tobytes()
    offsets = request[f"{key}.offsets"]
    column = np.empty(len(offsets) - 1, dtype=object)
    for row in range(len(column)):
        column[row] = data[offsets[row] : offsets[row + 1]]
    return column


def score(signature: Any, columns: dict[str, Any], num_rows: int) -> tuple[Any, Any]:
    """Logits and probabilities of all rows: a request of one row first, then larger ones."""
    edges = [0, *range(1, num_rows, _REQUEST_ROWS), num_rows]
    logits, probabilities = [], []
    for start, stop in pairwise(edges):
        tensors = {name: tf.constant(values[start:stop]) for name, values in columns.items()}
        outputs = signature(**tensors)
        logits.append(outputs["logit"].numpy())
        probabilities.append(outputs["probability"].numpy())
    return np.concatenate(logits), np.concatenate(probabilities)


def main(export: str, request_file: str, response_file: str) -> None:
    """Reads the request, scores it by both signatures, writes the response."""
    model = tf.saved_model.load(export)
    results: dict[str, Any] = {}
    with np.load(request_file, allow_pickle=False) as request:
        names = request["names"].tobytes().decode("utf-8").split("\n")
        num_rows = int(request["num_rows"])
        columns = {
            signature: {
                column: read_column(request, f"{kind}.{index}")
                for index, column in enumerate(names)
            }
            for signature, kind in (("serving_default", "typed"), ("serving_strings", "texts"))
        }
    # Most of the time goes to TensorFlow's one thread that prepares a graph for its first request.
    with ThreadPoolExecutor() as pool:
        scores = pool.map(
            lambda name: score(model.signatures[name], columns[name], num_rows), columns
        )
        for name, (logits, probabilities) in zip(columns, scores, strict=True):
            results[f"{name}.logit"] = logits
            results[f"{name}.probability"] = probabilities
    results["tensorflow"] = np.frombuffer(tf.__version__.encode(), dtype=np.uint8)
    foreign = sorted({"ctr_pipeline", "numba"} & set(sys.modules))
    results["foreign_modules"] = np.frombuffer(",".join(foreign).encode(), dtype=np.uint8)
    np.savez(response_file, allow_pickle=False, **results)


def run() -> None:
    """Scores what a line of standard input names, and nothing if the input ends without one."""
    line = sys.stdin.readline()
    if line:
        main(*json.loads(line))


if __name__ == "__main__":
    run()
    sys.stderr.flush()
    # Nothing waits to be written: Python would take a second to take modules apart.
    os._exit(0)
