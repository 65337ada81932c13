"""The agent: its decisions, and real processes of scripts that need no TensorFlow."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from ctr_pipeline.distributed.coordination.rendezvous import (
    NodeRange,
    RendezvousTimes,
    World,
)
from ctr_pipeline.distributed.elastic.agent import (
    Agent,
    AgentSettings,
    Observation,
    Step,
    decide_step,
    explain_change,
    is_counted,
)
from ctr_pipeline.distributed.elastic.client import RendezvousClient
from ctr_pipeline.distributed.elastic.local_nodes import (
    free_addresses,
    local_host,
    parse_address,
    parse_nodes,
    run_agents,
)
from ctr_pipeline.distributed.elastic.script import (
    ScriptProcess,
    ScriptState,
    find_program,
    world_environment,
)
from ctr_pipeline.distributed.elastic.service import RendezvousServer
from ctr_pipeline.distributed.rpc.access import Access
from ctr_pipeline.errors import CtrPipelineError
from tests.distributed.waiting import wait_until

HEALTHY, SUCCEEDED, FAILED = ScriptState.HEALTHY, ScriptState.SUCCEEDED, ScriptState.FAILED


@pytest.mark.parametrize(
    ("state", "waiting", "restarts", "num_nodes", "seconds", "expected"),
    [
        (HEALTHY, 0, 3, 2, 0.0, Step.GO_ON),
        (HEALTHY, 1, 0, 2, 0.0, Step.JOIN_NEXT_WORLD),
        (HEALTHY, -1, 0, 2, 0.0, Step.JOIN_NEXT_WORLD),
        (SUCCEEDED, 0, 3, 2, 0.0, Step.FINISH),
        (SUCCEEDED, 1, 3, 2, 0.0, Step.FINISH),
        (FAILED, 0, 3, 2, 0.0, Step.RETRY),
        (FAILED, 1, 3, 2, 0.0, Step.RETRY),
        (FAILED, -1, 3, 2, 0.0, Step.JOIN_NEXT_WORLD),
        (FAILED, -1, 0, 2, 0.0, Step.JOIN_NEXT_WORLD),
        (FAILED, 0, 0, 2, 9.9, Step.GO_ON),
        (FAILED, 0, 0, 2, 10.0, Step.GIVE_UP),
        (FAILED, 0, 0, 1, 0.0, Step.GIVE_UP),
    ],
)
def test_agent_decides_its_next_step_by_what_it_observes(
    state, waiting, restarts, num_nodes, seconds, expected
):
    seen = Observation(state, waiting, restarts, num_nodes=num_nodes, seconds_since_end=seconds)
    assert decide_step(seen, loss_seconds=10.0) is expected


def test_a_restart_counts_unless_a_member_was_lost():
    world = World(1, ("a", "b"), 0)
    assert is_counted(Step.RETRY, world, World(2, ("a", "b"), 0))
    assert is_counted(Step.RETRY, world, World(2, ("a", "b", "c"), 0))
    assert not is_counted(Step.RETRY, world, World(2, ("a", "c"), 0))
    assert not is_counted(Step.JOIN_NEXT_WORLD, world, World(2, ("a", "b"), 0))


def test_the_reason_of_a_change_is_said_in_words():
    assert explain_change(-2) == "2 members were lost"
    assert explain_change(-1) == "a member was lost"
    assert explain_change(3) == "3 nodes want to join"
    assert explain_change(1) == "a node wants to join, or a member restarts"


def test_tf_config_of_a_world():
    found = world_environment(World(7, ("a:1", "b:2"), 1))
    assert json.loads(found["TF_CONFIG"]) == {
        "cluster": {"worker": ["a:1", "b:2"]},
        "task": {"type": "worker", "index": 1},
    }
    assert found["CTRPIPE_WORLD_VERSION"] == "7"


@pytest.mark.parametrize("text", ["", "x", "0:2", "3:2", "1:2:3", "1:", "-1:2", "1:9999", "²:3"])
def test_a_range_that_is_none_is_explained(text):
    with pytest.raises(CtrPipelineError, match="MIN:MAX"):
        parse_nodes(text)


def test_ranges_of_nodes():
    assert parse_nodes("2:4") == NodeRange(2, 4)
    assert parse_nodes("3") == NodeRange(3, 3)


@pytest.mark.parametrize("text", ["", "host", ":1", "host:", "host:0", "host:70000", "host:x"])
def test_an_address_that_is_none_is_explained(text):
    with pytest.raises(CtrPipelineError, match="HOST:PORT"):
        parse_address("--address", text)


def test_local_nodes_have_different_ports():
    addresses = free_addresses("127.0.0.1", 20)
    assert len(set(addresses)) == 20
    assert local_host("127.0.0.1:1") == "127.0.0.1"
    assert local_host("10.0.0.9:1") == os.uname().nodename


def test_a_command_that_is_none_is_explained():
    with pytest.raises(CtrPipelineError, match="nosuchprogram"):
        find_program("nosuchprogram")


def _script(text, **variables):
    return ScriptProcess([sys.executable, "-c", text], {**os.environ, **variables})


def _end(script, grace=0.5):
    beats = []
    script.end(grace, meanwhile=lambda: beats.append(1), interval_seconds=0.1)
    return beats


def _wait_for_end(script):
    wait_until(lambda: script.state is not HEALTHY)


@pytest.mark.slow
def test_states_of_a_script():
    running, good, bad = (
        _script("input() if 0 else __import__('time').sleep(60)"),
        _script(""),
        (_script("raise SystemExit(7)")),
    )
    _wait_for_end(good)
    _wait_for_end(bad)
    assert (running.state, good.state, bad.state) == (HEALTHY, SUCCEEDED, FAILED)
    assert (good.exit_code, bad.exit_code) == (0, 7)
    assert _end(good) == []
    _end(running, grace=20.0)
    assert (running.state, running.exit_code) == (FAILED, 128 + signal.SIGTERM)


def _is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


@pytest.mark.slow
def test_a_script_that_ignores_sigterm_is_killed_with_its_children(tmp_path):
    script = _script(
        "import signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(99)'])\n"
        f"open({str(tmp_path / 'child')!r}, 'w').write(str(child.pid))\n"
        "time.sleep(99)"
    )
    wait_until(lambda: (tmp_path / "child").exists() and (tmp_path / "child").read_text())
    child = int((tmp_path / "child").read_text())
    assert len(_end(script, grace=0.5)) >= 2, "the lease is renewed meanwhile"
    assert script.exit_code == 128 + signal.SIGKILL
    wait_until(lambda: not _is_alive(child))


@pytest.mark.slow
def test_a_script_dies_with_its_agent(tmp_path):
    agent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import os, sys, time\n"
            "from ctr_pipeline.distributed.elastic.script import ScriptProcess\n"
            "script = ScriptProcess([sys.executable, '-c', 'import time; time.sleep(99)'],"
            " dict(os.environ))\n"
            f"open({str(tmp_path / 'pid')!r}, 'w').write(str(script.pid))\n"
            "time.sleep(99)",
        ]
    )
    wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    pid = int((tmp_path / "pid").read_text())
    assert _is_alive(pid)
    agent.kill()
    agent.wait()
    wait_until(lambda: not _is_alive(pid))


WRITES_WORLD = """
import json, os, pathlib, sys, time
config = json.loads(os.environ["TF_CONFIG"])
folder = pathlib.Path(sys.argv[1])
version = os.environ["CTRPIPE_WORLD_VERSION"]
own = config["cluster"]["worker"][config["task"]["index"]].replace(":", "-")
(folder / "new").mkdir(exist_ok=True)
(folder / "new" / own).write_text(json.dumps(config))
(folder / "new" / own).rename(folder / f"{version}.{own}")
while not (folder / "done").exists():
    if (folder / f"fail.{own}").exists():
        (folder / f"fail.{own}").unlink()
        sys.exit(9)
    time.sleep(0.05)
"""


class Job:
    """A rendezvous and agents in threads, of a script that writes its TF_CONFIG and waits."""

    def __init__(self, folder, stack, nodes, gather_seconds=0.5):
        self.folder = folder
        self.nodes = nodes
        self.lines = []
        self.codes = {}
        self.agents = {}
        self.threads = []
        self.access = Access.within_process()
        self.times = RendezvousTimes(gather_seconds=gather_seconds, lease_seconds=4.0)
        self.server = stack.enter_context(RendezvousServer("127.0.0.1:0", self.access, self.times))
        stack.callback(self.stop)

    def start(self, name, **settings):
        settings = AgentSettings(
            NodeRange(*self.nodes),
            **{"monitor_seconds": 0.1, "grace_seconds": 2.0, "loss_seconds": 6.0, **settings},
        )
        agent = self.agents[name] = Agent(
            RendezvousClient(self.server.address, name, self.access),
            [sys.executable, "-c", WRITES_WORLD, str(self.folder)],
            settings,
            environment=os.environ,
            report=self.lines.append,
        )

        def run():
            self.codes[name] = agent.run()

        self.threads.append(threading.Thread(target=run))
        self.threads[-1].start()

    def stop(self):
        for agent in self.agents.values():
            agent.stop()
        for thread in self.threads:
            thread.join(60.0)
            assert not thread.is_alive()

    def expect_world(self, version, *names):
        """Waits until the script runs in a world of exactly these, on all of them."""
        paths = [self.folder / f"{version}.{name.replace(':', '-')}" for name in names]
        wait_until(lambda: all(path.exists() for path in paths), 60.0)
        configs = [json.loads(path.read_text()) for path in paths]
        addresses = configs[0]["cluster"]["worker"]
        assert sorted(addresses) == sorted(names)
        for name, config in zip(names, configs, strict=True):
            index = addresses.index(name)
            assert config == {
                "cluster": {"worker": addresses},
                "task": {"type": "worker", "index": index},
            }
        return addresses

    def finish(self, *names):
        (self.folder / "done").write_text("")
        wait_until(lambda: set(names) <= self.codes.keys(), 60.0)
        assert {self.codes[name] for name in names} == {0}


@pytest.fixture
def start_job(tmp_path):
    with ExitStack() as stack:
        yield lambda least, most, **times: Job(tmp_path, stack, (least, most), **times)


@pytest.mark.slow
def test_tf_config(start_job):
    job = start_job(2, 2)
    job.start("a:1")
    job.start("b:1")
    job.expect_world(1, "a:1", "b:1")
    job.finish("a:1", "b:1")
    assert sum("world 1 of 2:2 formed: 2 nodes" in line for line in job.lines) == 2
    assert sum("succeeded on all nodes" in line for line in job.lines) == 2
    assert job.server.wait_until_finished(60.0)


@pytest.mark.slow
def test_tf_config_growth(start_job):
    job = start_job(2, 3)
    job.start("a:1")
    job.start("b:1")
    before = job.expect_world(1, "a:1", "b:1")
    job.start("c:1")
    after = job.expect_world(2, "a:1", "b:1", "c:1")
    assert after == [*before, "c:1"], "members keep their ranks, the oldest first"
    job.finish("a:1", "b:1", "c:1")


@pytest.mark.slow
def test_tf_config_shrink(start_job):
    # Two would do, and the third one may be late.
    job = start_job(2, 3, gather_seconds=3.0)
    for name in ("a:1", "b:1", "c:1"):
        job.start(name)
    before = job.expect_world(1, "a:1", "b:1", "c:1")
    job.agents[before[0]].stop()
    after = job.expect_world(2, *before[1:])
    assert after == before[1:]
    job.finish(*before[1:])
    assert any("a member was lost; restarting" in line for line in job.lines)


@pytest.mark.slow
def test_a_script_that_fails_restarts_on_all_nodes(start_job):
    job = start_job(2, 2)
    job.start("a:1", max_restarts=1)
    job.start("b:1", max_restarts=0)
    job.expect_world(1, "a:1", "b:1")
    (job.folder / "fail.a-1").write_text("")
    job.expect_world(2, "a:1", "b:1")
    job.finish("a:1", "b:1")


@pytest.mark.slow
def test_a_script_that_fails_too_often_ends_its_agent_with_its_exit_code(start_job):
    job = start_job(1, 1)
    job.start("a:1", max_restarts=1)
    for version in (1, 2):
        job.expect_world(version, "a:1")
        (job.folder / "fail.a-1").write_text("")
    wait_until(lambda: "a:1" in job.codes)
    assert job.codes["a:1"] == 9
    assert job.lines[-1].endswith("no restarts are left; giving up")


@pytest.mark.slow
def test_scripts_go_on_without_a_rendezvous(start_job):
    job = start_job(1, 1)
    job.start("a:1")
    job.expect_world(1, "a:1")
    job.server.__exit__(None, None, None)
    wait_until(lambda: any("does not answer" in line for line in job.lines))
    time.sleep(0.3)
    job.finish("a:1")


@pytest.mark.slow
def test_nodes_form_a_world_again_at_a_rendezvous_that_was_restarted(start_job):
    job = start_job(2, 2)
    job.start("a:1")
    job.start("b:1")
    job.expect_world(1, "a:1", "b:1")
    for path in job.folder.glob("1.*"):
        path.unlink()
    job.server.__exit__(None, None, None)
    with RendezvousServer(job.server.address, job.access, job.times) as again:
        job.expect_world(1, "a:1", "b:1")
        job.finish("a:1", "b:1")
        assert again.wait_until_finished(60.0)


class FakeAgent:
    """Ends when it is told to, or stopped."""

    def __init__(self, outcome=None):
        self._ended = threading.Event()
        self._outcome = None
        if outcome is not None:
            self.end(outcome)

    def end(self, outcome):
        self._outcome = outcome
        self._ended.set()

    def stop(self):
        self._ended.set()

    def run(self):
        self._ended.wait()
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return self._outcome


def test_nodes_without_which_no_world_can_be_formed_end_the_others():
    assert run_agents([FakeAgent(), FakeAgent(5)], least=2) == 5


def test_other_nodes_outlive_one_that_fails():
    last = FakeAgent()
    threading.Timer(0.3, last.end, (0,)).start()
    assert run_agents([last, FakeAgent(5)], least=1) == 0


def test_the_first_error_is_raised_if_no_node_succeeds():
    with pytest.raises(CtrPipelineError, match="broken"):
        run_agents([FakeAgent(CtrPipelineError("broken")), FakeAgent()], least=2)
