import subprocess
import sys

import numpy as np
import pytest

from ctr_pipeline.embeddings import log_chain
from ctr_pipeline.embeddings.cut_storage import CutStorage
from ctr_pipeline.embeddings.log_chain import CutFile, extend_chain, needs_base


def make_file(kind, num_bytes=100, cut=1, partition=0):
    name = log_chain.rows_name(partition, kind, cut)
    return CutFile(name, num_bytes, 0, 1, partition, kind, 0)


def chain_of(*sizes):
    base, *deltas = sizes
    return (
        make_file("base", base),
        *(make_file("delta", size, cut) for cut, size in enumerate(deltas, start=2)),
    )


def test_a_chain_begins_anew_once_its_deltas_outgrow_its_base():
    assert not needs_base([chain_of(100), chain_of(50)])
    assert not needs_base([chain_of(100, 100), chain_of(50, 50)])
    assert needs_base([chain_of(100, 101), chain_of(50, 50)])
    # It is the whole that counts: one cut has one kind.
    assert not needs_base([chain_of(100, 120), chain_of(50, 10)])


def test_a_chain_begins_anew_after_eight_deltas():
    assert not needs_base([chain_of(1000, *[1] * 7)])
    assert needs_base([chain_of(1000, *[1] * 8)])


def test_log_chain_needs_a_base_before_any_delta():
    assert needs_base([])
    assert needs_base([()])
    assert needs_base([(make_file("delta"),)])
    with pytest.raises(ValueError, match=r"rows-0000-delta-000001\.arrow follows no base"):
        extend_chain((), make_file("delta"))


def test_chains_grow_by_deltas_and_end_at_a_base():
    base, delta, newer = make_file("base"), make_file("delta", cut=2), make_file("base", cut=3)
    assert extend_chain((), base) == (base,)
    assert extend_chain((base,), delta) == (base, delta)
    assert extend_chain((base, delta), None) == (base, delta)
    assert extend_chain((base, delta), newer) == (newer,)


def test_disk_use_is_bounded_closely_from_above(tmp_path):
    from ctr_pipeline.embeddings.snapshot import RowSnapshot
    from ctr_pipeline.embeddings.store import EmbeddingStore
    from ctr_pipeline.specs.optimizer import OptimizerSpec
    from ctr_pipeline.specs.segment import SegmentSpec
    from ctr_pipeline.specs.table import TableSpec

    segment = SegmentSpec("v", 16, OptimizerSpec(name="adam", learning_rate=0.1), "mean")
    store = EmbeddingStore([TableSpec("t", 50_000)], [segment], seed=0, threads=1)
    store.read_rows(np.arange(50_000), create=True)
    for cut, num_partitions in ((1, 1), (2, 16)):
        snapshot = RowSnapshot(store, cut=cut)
        snapshot.begin(full=True)
        files = snapshot.write(
            CutStorage.at(tmp_path), num_partitions=num_partitions, partitions=range(num_partitions)
        )
        written = sum(file.num_bytes for file in files)
        bound = log_chain.base_bytes(50_000, width=16, num_slots=32, num_partitions=num_partitions)
        assert 0.95 * bound < written <= bound
        assert written == sum((tmp_path / file.name).stat().st_size for file in files)


def test_the_log_never_outgrows_its_bound_on_disk():
    """Every row changes between two cuts; the best cut is the worst one to keep."""
    size = 100
    for num_kept in (1, 2, 5):
        best, kept, chain, on_disk, most = (), [], (), {}, 0
        for cut in range(1, 60):
            kind = "base" if needs_base([chain] if chain else []) else "delta"
            written = make_file(kind, size, cut)
            on_disk[written.name] = size
            most = max(most, sum(on_disk.values()))
            chain = extend_chain(chain, written)
            kept = [*kept, chain][-num_kept:]
            if cut == 3:
                best = chain
            needed = {file.name for one in [*kept, best] for file in one}
            on_disk = {name: num for name, num in on_disk.items() if name in needed}
        assert most <= log_chain.most_kept_bytes(size, num_kept=num_kept)


def test_chains_are_decided_without_numpy():
    code = "import sys, ctr_pipeline.embeddings.log_chain; print('numpy' in sys.modules)"
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert output.stdout.strip() == "False"
