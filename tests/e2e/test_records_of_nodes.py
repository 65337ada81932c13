"""Records of a script whose nodes are killed, join and lose their rendezvous: each counted once."""

import json
import signal
from collections import Counter
from contextlib import ExitStack
from itertools import pairwise

import pytest

from tests.e2e.elastic_nodes import Cluster

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.e2e, pytest.mark.timeout(600)]

NUM_RECORDS, EPOCHS = 600, 2

# What the members bring to `synchronize` stands for a collective sum of TensorFlow.
SCRIPT = """
import json, pathlib, sys, time
from ctr_pipeline import ElasticRecords
from ctr_pipeline.distributed.elastic.script import rendezvous_of_script, world_of_script
from ctr_pipeline.distributed.rpc.failures import CallRefused

folder, keeps = pathlib.Path(sys.argv[1]), sys.argv[2] == "checkpoint"
world = world_of_script()
rendezvous = rendezvous_of_script(world)
records = ElasticRecords({num_records}, batch_size=4, epochs={epochs}, seed=3)
saved = folder / "checkpoint.json"
kept = {{"position": 0, "counts": [0] * {num_records}}}
if keeps:
    if saved.exists():
        kept = json.loads(saved.read_text())
    records.go_on_from(kept["position"])

def save():
    kept["position"] = records.position
    (folder / "new.json").write_text(json.dumps(kept))
    (folder / "new.json").rename(saved)

log = open(folder / f"{{world.version}}.{{world.rank}}.steps", "w", buffering=1)
finished = None
for number, batch in enumerate(records):
    if finished:
        log.write(f"done {{finished}}\\n")
    finished = records.position
    log.write(f"begun {{records.position}} {{json.dumps(batch.tolist())}}\\n")
    try:
        all = rendezvous.synchronize(f"{{records.position}}", json.dumps(batch.tolist()), 60.0)
    except CallRefused:
        time.sleep(60)  # the agent ends this script
    for text in all:
        for record in json.loads(text):
            kept["counts"][record] += 1
    if keeps and world.rank == 0 and number % 5 == 4:
        save()
    # Records are left for all changes, however long a node takes to start.
    time.sleep(0.02 if (folder / "changed").exists() else 0.3)
log.write(f"done {{records.position}}\\n")
if keeps and world.rank == 0:
    save()
"""


class CountingCluster(Cluster):
    """Nodes whose script writes down the steps that it begins and finishes."""

    def steps(self):
        """Of each world: what its members began, by the step's end, and what they finished."""
        found = {}
        for path in sorted(self.folder.glob("*.steps")):
            version = int(path.name.split(".")[0])
            begun, done = found.setdefault(version, ({}, set()))
            for line in path.read_text().splitlines():
                word, position, *batch = line.split(" ", 2)
                if word == "begun":
                    begun.setdefault(int(position), []).extend(json.loads(batch[0]))
                else:
                    done.add(int(position))
        return found

    def wait_for_steps(self, size, number=8):
        """Returns once a world of so many nodes, the newest one, has made some steps."""

        def has_trained():
            found = self.steps()
            version = max(found, default=0)
            members = list(self.folder.glob(f"{version}.*.steps"))
            return len(members) == size and len(found[version][1]) >= number

        self.wait(has_trained)


def _run_with_changes(folder, mode):
    """Two nodes; one is killed, two join, and the rendezvous is killed and started again."""
    with ExitStack() as stack:
        cluster = CountingCluster(folder, stack, ledger=True)
        (folder / "script.py").write_text(SCRIPT.format(num_records=NUM_RECORDS, epochs=EPOCHS))

        def start_node(index):
            script = (folder / "script.py", folder, mode)
            return cluster.start_node(f"node-{index}", "1:3", "1", *script)

        nodes = [start_node(index) for index in range(2)]
        cluster.wait_for_steps(2)
        nodes.pop().send_signal(signal.SIGKILL)
        cluster.wait_for_steps(1)
        nodes += [start_node(index) for index in (2, 3)]
        cluster.wait_for_steps(3)
        cluster.rendezvous.kill()
        cluster.rendezvous.wait()
        cluster.serve()
        cluster.wait_for_steps(3)
        (folder / "changed").touch()
        cluster.expect_end(nodes)
        return cluster


def test_a_script_with_checkpoints_counts_every_record_once(tmp_path):
    cluster = _run_with_changes(tmp_path, "checkpoint")
    kept = json.loads((tmp_path / "checkpoint.json").read_text())
    assert kept == {"position": NUM_RECORDS * EPOCHS, "counts": [EPOCHS] * NUM_RECORDS}
    # Of two nodes, of one, and of three.
    assert len(cluster.steps()) >= 3


def test_steps_are_repeated_only_when_unfinished_without_checkpoints(tmp_path):
    cluster = _run_with_changes(tmp_path, "ledger")
    # A world may be followed by the next one before its first step.
    worlds = sorted(one for one in cluster.steps().items() if one[1][0])
    reached = 0
    for (_, (begun, done)), (_, (after, _)) in pairwise(worlds):
        reached = max({reached, *done})
        assert min(after) > reached, "a finished step is begun again"
        assert [one for one in begun if one > reached] in ([], [max(begun)]), "not one at a time"
    counts = Counter(
        record for _, (begun, _) in worlds for batch in begun.values() for record in batch
    )
    repeated = sum(len(begun[one]) for _, (begun, done) in worlds for one in begun.keys() - done)
    assert set(counts) == set(range(NUM_RECORDS))
    assert 0 <= counts.total() - EPOCHS * NUM_RECORDS <= repeated
