import zlib

import pytest

from ctr_pipeline.distributed.coordination.events import CutTaken, TakeCut
from ctr_pipeline.distributed.coordination.messages import SnapshotReply
from ctr_pipeline.distributed.coordination.placement import balanced_placement
from ctr_pipeline.distributed.master.cuts import CutKeeper
from ctr_pipeline.distributed.master.manifests import Cuts
from ctr_pipeline.embeddings.cut_storage import CutStorage
from ctr_pipeline.embeddings.log_chain import CutFile, rows_name
from tests.distributed.job_specs import change_spec, frozen_before_training, job_spec

NUM_PARTITIONS = 2
FROZEN = frozen_before_training(1)
SPEC = job_spec(num_partitions=NUM_PARTITIONS, keep_checkpoints=3)


class Server:
    """One parameter server that writes files of a given size."""

    def __init__(self, folder):
        self._folder = folder
        self.delta_bytes = 10
        self.requests = []

    def call_all(self, method, addresses, request, reply, *, deadline_seconds, abandoned):
        assert method == "Snapshot"
        self.requests.append(request)
        kind = "base" if request.full else "delta"
        content = b"x" * (100 if request.full else self.delta_bytes)
        files = []
        for partition in range(NUM_PARTITIONS):
            name = request.prefix + rows_name(partition, kind, request.cut)
            (self._folder / name).parent.mkdir(exist_ok=True)
            (self._folder / name).write_bytes(content)
            crc = zlib.crc32(content)
            files.append(CutFile(name, len(content), crc, 1, partition, kind, 0))
        return [SnapshotReply("", tuple(files), (), 1, 0.0)]


@pytest.fixture
def server(tmp_path):
    CutStorage.at(tmp_path).begin("job-1")
    return Server(tmp_path)


def take(server, folder, cut):
    """Takes a cut that the schedule wants to be a delta of the one before, if there is one."""
    keeper = CutKeeper(
        SPEC,
        Cuts(CutStorage.at(folder)),
        server,
        deadline_seconds=1.0,
        wall_clock=lambda: 0.0,
    )
    action = TakeCut(cut, 1, cut - 1, cut == 1, 0, cut, 0, FROZEN)
    taken = keeper.take(
        action, ["here"], balanced_placement(SPEC), abandoned=lambda: False, fence=lambda: None
    )
    assert taken == CutTaken(cut, 0.0)
    return server.requests[-1].full


def test_deltas_that_outgrow_their_base_make_the_next_cut_a_full_one(tmp_path, server):
    server.delta_bytes = 60
    assert [take(server, tmp_path, cut) for cut in range(1, 8)] == [
        True,
        False,
        False,
        True,
        False,
        False,
        True,
    ]
    chain = Cuts(CutStorage.at(tmp_path)).load(7).files.partitions[0].files
    assert [file.kind for file in chain] == ["base"]


@pytest.mark.parametrize(
    ("ends_epoch", "evict_after", "oldest"),
    [(True, 30, 170), (False, 30, 0), (True, None, 0), (True, 500, 0)],
)
def test_old_rows_are_removed_when_an_epoch_ends(tmp_path, server, ends_epoch, evict_after, oldest):
    spec = change_spec(SPEC, evict_after=evict_after, earlier_steps=120)
    folder = Cuts(CutStorage.at(tmp_path))
    keeper = CutKeeper(spec, folder, server, deadline_seconds=1.0, wall_clock=lambda: 0.0)
    action = TakeCut(1, 1, 0, True, 0, 80, 0, FROZEN, ends_epoch)
    keeper.take(
        action, ["here"], balanced_placement(SPEC), abandoned=lambda: False, fence=lambda: None
    )
    assert server.requests[-1].oldest_step == oldest


def test_small_deltas_go_on_as_the_schedule_says(tmp_path, server):
    assert [take(server, tmp_path, cut) for cut in range(1, 9)] == [True, *[False] * 7]
    folder = Cuts(CutStorage.at(tmp_path))
    assert folder.sound(read=True)[1] == []
    assert len(folder.load(8).files.partitions[1].files) == 8
