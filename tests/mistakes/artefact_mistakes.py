"""Damaged, edited and missing artefacts of a run; models and disks that give way late."""

import errno
import json
import resource
import shutil
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ctr_pipeline.cli.main import main
from tests.mistakes.spoiled_world import (
    HEADER,
    PREDICT_AGAIN,
    Case,
    World,
    entry,
    lines,
    nothing,
    returning,
)

ANALYZE = ("analyze", "c.yaml")
EVALUATE = ("evaluate", "c.yaml")
EXPORT = ("export", "c.yaml")
TRAIN_ANEW = "with --overwrite to train from the start"


def _found(world: World, pattern: str) -> list[Path]:
    found = sorted((world.folder / "run").glob(pattern))
    assert found, pattern
    return found


def edited(pattern: str, **values: object) -> Callable[[World], None]:
    """Some JSON files of the run have these values."""

    def spoil(world: World) -> None:
        for path in _found(world, pattern):
            path.write_text(json.dumps(json.loads(path.read_text()) | values))

    return spoil


def rewritten(pattern: str, content: bytes) -> Callable[[World], None]:
    """Some files of the run hold this."""

    def spoil(world: World) -> None:
        for path in _found(world, pattern):
            path.write_bytes(content)

    return spoil


def removed(pattern: str) -> Callable[[World], None]:
    """Some files or folders of the run are gone."""

    def spoil(world: World) -> None:
        for path in _found(world, pattern):
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    return spoil


def in_the_way(name: str, *, folder: bool) -> Callable[[World], None]:
    """A file stands where the run wants a folder, or the other way round."""

    def spoil(world: World) -> None:
        path = world.folder / "run" / name
        path.unlink(missing_ok=True)
        if folder:
            (path / "within").mkdir(parents=True)
        else:
            path.write_text("mine")

    return spoil


def vocabulary(**columns: object) -> Callable[[World], None]:
    """The vocabulary file of the run has these columns."""

    def spoil(world: World) -> None:
        (path,) = _found(world, "vocabularies/*")
        pq.write_table(pa.table(columns), path)

    return spoil


def config_of_another_run(**values: object) -> Callable[[World], None]:
    """The config has changed, and what it was is gone."""

    def spoil(world: World) -> None:
        (world.folder / "run" / "config.resolved.yaml").unlink()
        world.config(**values)

    return spoil


def _flip(world: World) -> None:
    for path in _found(world, "checkpoints/parts/*-dense.bin"):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)


def _cut(world: World) -> None:
    for path in _found(world, "checkpoints/parts/*-rows.bin"):
        path.write_bytes(path.read_bytes()[:-1])


def forged(change: Callable[[bytes], bytes]) -> Callable[[World], None]:
    """The embedding rows of every checkpoint are changed, and its manifest vouches for them."""

    def spoil(world: World) -> None:
        now = {}
        for path in _found(world, "checkpoints/parts/*-rows.bin"):
            data = change(path.read_bytes())
            path.write_bytes(data)
            now[f"parts/{path.name}"] = [len(data), zlib.crc32(data)]

        def vouch(manifest: dict[str, Any]) -> None:
            for part in manifest.get("parts", ()):
                part[1:] = now.get(part[0], part[1:])

        _vouch(world, vouch)

    return spoil


def _vouch(world: World, change: Callable[[dict[str, Any]], None]) -> None:
    """The manifests of all checkpoints are changed, with checksums that fit."""
    for path in _found(world, "checkpoints/manifests/*.json"):
        manifest = json.loads(path.read_text())
        del manifest["crc32"]
        change(manifest)
        crc32 = zlib.crc32(json.dumps(manifest, sort_keys=True).encode())
        path.write_text(json.dumps({**manifest, "crc32": crc32}))


def _rows_file(
    data: bytes, description: bytes | None = None, *, first_key_twice: bool = False
) -> bytes:
    """A file of embedding rows with another description or keys, and a checksum that fits."""
    (length,) = struct.unpack("<I", data[8:12])
    text, arrays = data[12 : 12 + length], data[12 + length : -4]
    if description is not None:
        text = description
    if first_key_twice:
        arrays = arrays[:8] * 2 + arrays[16:]
    content = data[:8] + struct.pack("<I", len(text)) + text + arrays
    return content + struct.pack("<I", zlib.crc32(content))


def _without_num_rows(data: bytes) -> bytes:
    (length,) = struct.unpack("<I", data[8:12])
    description = json.loads(data[12 : 12 + length])
    del description["num_rows"]
    return _rows_file(data, json.dumps(description).encode())


def _forged(name: str, change: Callable[[bytes], bytes], says: str) -> Case:
    place = ("rows.bin", "the file is damaged", says, "earlier checkpoint")
    return Case(f"embedding_rows_{name}", forged(change), place, PREDICT_AGAIN, trained=True)


FORGED = (
    _forged("of_another_kind", lambda data: b"PARQUET1" + data[8:], "does not begin with"),
    _forged("described_at_length", lambda d: d[:8] + b"\xff" * 4 + d[12:], "is too long"),
    _forged("undescribed", lambda data: _rows_file(data, b"{"), "description cannot be read"),
    _forged("with_a_list", lambda data: _rows_file(data, b"[]"), "is not a mapping"),
    _forged("uncounted", _without_num_rows, "number of rows is missing"),
    _forged("ending_early", lambda data: data[:-9], "ends too early"),
    _forged("flipped", lambda data: data[:-5] + bytes([data[-5] ^ 1]) + data[-4:], "checksum"),
    _forged("going_on", lambda data: data + b"!", "something follows its end"),
    _forged("twice", lambda data: _rows_file(data, first_key_twice=True), "stands twice"),
)


def done(*commands: str, **values: object) -> Callable[[World], None]:
    """Some commands went well with this config."""

    def spoil(world: World) -> None:
        if values:
            world.config(**values)
        for command in commands:
            assert main([command, "c.yaml", "-q"]) == 0

    return spoil


def _cached_rows_damaged(world: World) -> None:
    done("analyze")(world)
    for path in _found(world, "cache/ingested/train*/*.arrow"):
        path.write_bytes(path.read_bytes()[:-9])
    removed("statistics.json")(world)


def address_space(*, num_rows: int) -> Callable[[World], None]:
    """The system reserves memory for so many embedding rows and no more."""

    def spoil(world: World) -> None:
        import mmap

        def reserve(*arguments: int, **options: int) -> mmap.mmap:
            if num_rows == 0:
                raise OSError(errno.ENOMEM, "Cannot allocate memory")
            return mmap.mmap(*arguments, **options)

        known = {name: getattr(mmap, name) for name in dir(mmap) if name != "mmap"}
        where = "ctr_pipeline.embeddings"
        world.monkeypatch.setattr(f"{where}.reserved.mmap", SimpleNamespace(**known, mmap=reserve))
        if num_rows:
            world.monkeypatch.setattr(f"{where}.rows.MOST_ROWS", num_rows)

    return spoil


def _file_size_limit(world: World) -> None:
    """No file may grow beyond what all but the servable model need."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    world.cleanups.append(lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard)))
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))


def _full_at_the_end(world: World) -> None:
    """The disk is full once the servable model is written and proved."""

    def refuse(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def prove(*_: object, **__: object) -> None:
        world.monkeypatch.setattr("os.fsync", refuse)

    world.monkeypatch.setattr("ctr_pipeline.pipeline.stages.export.prove_parity", prove)


def _full_for_checkpoints(world: World) -> None:
    """The disk has room for all but checkpoints."""

    def refuse(file: object, block: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    world.monkeypatch.setattr("ctr_pipeline.storage.commit_log.PartFile.write", refuse)


_CUSTOM = """
import numpy as np
import tensorflow as tf


class Strange(keras.layers.Layer):
    def call(self, x):
        return {body}


def build_model(inputs, options):
    return keras.ops.sum(Strange()(keras.layers.Dense(4)(inputs.flat_BK)), axis=-1)
"""


def trained_custom(body: str) -> Callable[[World], None]:
    """A custom model with a layer of this was trained."""

    def spoil(world: World) -> None:
        world.model_file(_CUSTOM.format(body=body))
        done("train", "evaluate")(world)

    return spoil


ROW_MISTAKES = (
    Case(
        "statistics_is_a_folder",
        lambda w: (w.write("run/.lock", ""), in_the_way("statistics.json", folder=True)(w)),
        ("run", "cannot be written"),
        ANALYZE,
    ),
    Case(
        "file_where_statistics_begin",
        lambda w: (w.write("run/.lock", ""), in_the_way("vocabularies", folder=False)(w)),
        ("run", "cannot be written"),
        ANALYZE,
    ),
    Case(
        "file_where_the_profile_belongs",
        lambda w: (
            w.config(features="auto"),
            w.write("run/.lock", ""),
            w.write("run/cache/profile", "mine"),
        ),
        ("run/cache/profile", "cannot be written"),
        ANALYZE,
    ),
    Case(
        "cached_rows_damaged",
        _cached_rows_damaged,
        ("part-00000.arrow", "damaged", "Delete the folder 'cache'"),
        ANALYZE,
    ),
)

APP_MISTAKES = (
    *FORGED[1:],
    Case(
        "manifests_gone",
        removed("checkpoints/manifests/*.json"),
        ("run", "ctrpipe run"),
        EVALUATE,
        trained=True,
        followed=True,
    ),
    Case(
        "manifests_of_another_format",
        lambda w: _vouch(w, lambda manifest: manifest.update(version=9)),
        ("manifests", "has format 9", TRAIN_ANEW),
        PREDICT_AGAIN,
        trained=True,
        followed=True,
    ),
    Case(
        "manifests_edited",
        edited("checkpoints/manifests/*.json", writer="me"),
        ("manifests", "is damaged", TRAIN_ANEW),
        EVALUATE,
        trained=True,
        followed=True,
    ),
    Case(
        "checkpoint_cut_short",
        _cut,
        ("rows.bin", "is damaged", "bytes instead of", TRAIN_ANEW),
        PREDICT_AGAIN,
        trained=True,
        followed=True,
    ),
    Case(
        "embedding_rows_of_another_model",
        config_of_another_run(model__embedding_dim=3),
        ("rows.bin", "another make", "Restore the configuration"),
        PREDICT_AGAIN,
        trained=True,
    ),
    Case(
        "dense_parameters_of_another_model",
        config_of_another_run(model__hidden_units=[5]),
        ("dense.bin", "another make", "Restore the configuration"),
        PREDICT_AGAIN,
        trained=True,
    ),
    Case(
        "statistics_no_json",
        rewritten("statistics.json", b"{"),
        ("statistics.json", "is damaged", "ctrpipe analyze"),
        EVALUATE,
        trained=True,
        followed=True,
    ),
    Case(
        "statistics_of_another_form",
        edited("statistics.json", columns=3),
        ("statistics.json", "is damaged", "ctrpipe analyze"),
        PREDICT_AGAIN,
        trained=True,
        followed=True,
    ),
    Case(
        "statistics_of_another_version",
        edited("statistics.json", version=99),
        ("statistics.json", "has version 99", "ctrpipe analyze"),
        PREDICT_AGAIN,
        trained=True,
        followed=True,
    ),
    Case(
        "data_changed",
        lambda w: w.rows(lines(seed=1)),
        ("run", "the data changed since the model was trained", "--overwrite"),
        EVALUATE,
        trained=True,
        followed=True,
    ),
    Case(
        "plan_edited",
        edited("preprocessing.json", fields=[]),
        ("run", "trained with other transforms"),
        PREDICT_AGAIN,
        trained=True,
        followed=True,
    ),
    Case(
        "plan_gone",
        removed("preprocessing.json"),
        ("preprocessing.json", "cannot be read", "ctrpipe train --resume"),
        PREDICT_AGAIN,
        trained=True,
        followed=True,
    ),
    Case(
        "plan_of_another_version",
        edited("preprocessing.json", version=99),
        ("preprocessing.json", "has version 99", "ctrpipe train --resume"),
        PREDICT_AGAIN,
        trained=True,
        followed=True,
    ),
    Case(
        "vocabulary_without_its_column",
        vocabulary(word=["a"]),
        ("vocabularies", "no column 'value'", "ctrpipe train --resume"),
        PREDICT_AGAIN,
        trained=True,
        followed=True,
    ),
    Case(
        "vocabulary_of_other_rows",
        vocabulary(value=["a", "b"]),
        ("vocabularies", "2 values, the plan was fitted with 6", "ctrpipe train --resume"),
        PREDICT_AGAIN,
        trained=True,
        followed=True,
    ),
    Case(
        "no_good_row",
        lambda w: (
            config_of_another_run(data__bad_rows="skip", data__max_bad_fraction=1.0)(w),
            w.write("new.csv", HEADER + ",5,a,u1\n" * 9),
        ),
        ("new.csv", "holds no good row"),
        (*EVALUATE, "--data", "new.csv"),
        trained=True,
    ),
)

COMMAND_MISTAKES = (
    Case(
        "strict_without_rows_held_out",
        removed("cache/encoded"),
        ("run", "rows that training held out", "leave out --strict"),
        (*PREDICT_AGAIN, "--strict"),
        trained=True,
        followed=True,
    ),
    FORGED[0],
    Case(
        "checkpoints_gone",
        removed("checkpoints/*"),
        ("run", "ctrpipe run"),
        EVALUATE,
        True,
        followed=True,
    ),
    Case(
        "checkpoint_flipped",
        _flip,
        ("dense.bin", "is damaged (CRC differs)", TRAIN_ANEW),
        EXPORT,
        trained=True,
        followed=True,
    ),
    Case(
        "statistics_gone",
        removed("statistics.json"),
        ("statistics.json", "cannot be read", "ctrpipe analyze"),
        PREDICT_AGAIN,
        trained=True,
        followed=True,
    ),
    Case(
        "statistics_edited",
        edited("statistics.json", label_rate=0.9),
        ("statistics.json", "not as it was written", "ctrpipe analyze"),
        EXPORT,
        trained=True,
        followed=True,
    ),
    Case(
        "moments_overflow",
        lambda w: (
            w.rows([f"{line[0]},{'-' * (n % 2)}1.7e308,a,u" for n, line in enumerate(lines())]),
            w.config(features=[{"columns": "price", "number": "normalize"}]),
        ),
        ("feature 'price'", "moments overflow", "Put clip or log first"),
    ),
    Case(
        "too_many_ids",
        entry(columns="city", id={"vocabulary": {"oov_buckets": 2**31 - 1}}),
        ("feature 'city'", "32-bit", "oov_buckets"),
    ),
    Case(
        "too_many_cut_points",
        entry(columns="price", id={"log_round": {"num_bins": 10**9, "base": 1.0000001}}),
        ("feature 'price'", "cut points", "fewer bins"),
    ),
    Case(
        "results_of_an_earlier_run",
        nothing,
        ("run", "holds the results of an earlier run", "--resume", "--overwrite"),
        trained=True,
        followed=True,
    ),
    Case(
        "predict_over_the_data",
        nothing,
        ("rows.csv", "is a file that this command reads", "Name another output"),
        ("predict", "c.yaml", "--data", "rows.csv", "-o", "rows.csv"),
        trained=True,
    ),
    Case(
        "vocabulary_repeats",
        vocabulary(value=["a", "b", "c", "d", "e", "a"]),
        ("vocabularies", "repeats a value", "ctrpipe train --resume"),
        PREDICT_AGAIN,
        trained=True,
        followed=True,
    ),
    Case(
        "init_below_a_file",
        lambda w: w.write("a", "mine"),
        ("a", "cannot be written"),
        ("init", "rows.csv", "--label", "click", "-o", "a/b/new.yaml"),
    ),
    Case(
        "no_memory_for_embeddings",
        address_space(num_rows=0),
        ("no address space", "embedding rows", "embedding_dim"),
    ),
    Case(
        "too_little_memory_for_embeddings",
        address_space(num_rows=3),
        ("embedding rows are needed", "there is room for 3", "embedding_dim"),
    ),
    Case("disk_full_in_a_checkpoint", _full_for_checkpoints, ("checkpoints", "disk is full")),
    Case(
        "export_is_a_file",
        lambda w: (done("train", "evaluate")(w), in_the_way("export", folder=False)(w)),
        ("export", "cannot be written"),
        EXPORT,
    ),
    Case(
        "disk_full_in_the_servable_model",
        lambda w: (done("train", "evaluate")(w), _file_size_limit(w)),
        ("export", "TensorFlow cannot write the model", "disk has room"),
        EXPORT,
        slow=True,
    ),
    Case(
        "disk_full_when_publishing",
        lambda w: (done("train", "evaluate")(w), _full_at_the_end(w)),
        ("export", "disk is full"),
        EXPORT,
        slow=True,
    ),
    Case(
        "custom_of_other_inputs",
        returning("keras.ops.sum(keras.layers.Dense(2)(keras.Input((3,))), axis=-1)"),
        ("model.py", "layers make no model", "from the inputs given"),
    ),
    Case(
        "custom_looks_at_other_rows",
        trained_custom("x - keras.ops.mean(x, axis=0)"),
        ("export", "row", "equal rows equal logits"),
        EXPORT,
        slow=True,
    ),
    Case(
        "custom_runs_in_python",
        lambda w: w.model_file(
            _CUSTOM.format(
                body="tf.ensure_shape(tf.numpy_function(np.sinh, [x], tf.float32), x.shape)"
            )
        ),
        ("model.file", "cannot compile the model", "without Python functions"),
    ),
)
