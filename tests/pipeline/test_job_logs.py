import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctr_pipeline.distributed.launchers.processes.log_file import LogFile
from ctr_pipeline.errors import RunFolderError
from ctr_pipeline.pipeline.job import control as job_control
from ctr_pipeline.pipeline.job.control import Job, await_log, read_log


def last_lines(content, num_lines, path):
    path.write_bytes(content)
    return b"".join(read_log(path, num_lines, follow=False))


@given(
    content=st.lists(st.sampled_from([b"a", b"\n", b"bc"])).map(b"".join),
    num_lines=st.integers(0, 8),
    block_bytes=st.integers(1, 5),
)
def test_the_last_lines_whatever_the_size_of_blocks(
    tmp_path_factory, content, num_lines, block_bytes
):
    path = tmp_path_factory.mktemp("log") / "x.log"
    lines = content.decode().splitlines(keepends=True)
    expected = "".join(lines[max(0, len(lines) - num_lines) :] if num_lines else []).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(job_control, "BLOCK_BYTES", block_bytes)
        assert last_lines(content, num_lines, path) == expected


class Writer:
    """Stands in for time passing: whenever the reader pauses, the next step happens."""

    def __init__(self, *steps):
        self.steps = list(steps)

    def pause(self, _seconds):
        if not self.steps:
            raise KeyboardInterrupt
        self.steps.pop(0)()


def follow(path, writer, num_lines=0):
    found = []
    with pytest.raises(KeyboardInterrupt):
        found.extend(read_log(path, num_lines, follow=True, pause=writer.pause))
    return b"".join(found)


def test_following_misses_nothing_between_the_last_lines_and_the_next(tmp_path):
    path = tmp_path / "x.log"
    path.write_bytes(b"old\nlast\n")
    reader = read_log(path, 1, follow=True)
    assert next(reader) == b"last\n"
    with path.open("ab") as file:
        file.write(b"next\n")
    assert next(reader) == b"next\n"
    reader.close()


def test_following_survives_that_the_log_is_moved_away(tmp_path):
    path = tmp_path / "x.log"
    log = LogFile(path, max_bytes=30)
    log.write(b"first line of twenty bytes\n")
    numbers = iter(range(100))
    writer = Writer(*([lambda: log.write(b"line %d of sixteen\n" % next(numbers))] * 10))
    found = follow(path, writer)
    assert found == b"".join(b"line %d of sixteen\n" % number for number in range(10))
    log.close()


def test_following_waits_for_a_log_that_is_gone_for_a_moment(tmp_path):
    path = tmp_path / "x.log"
    path.write_bytes(b"a\n")
    writer = Writer(path.unlink, lambda: path.write_bytes(b"b\n"))
    assert follow(path, writer, num_lines=5) == b"a\nb\n"


class TestWaitingForALog:
    @pytest.fixture
    def job(self, tmp_path):
        job = Job(tmp_path)
        job.logs.mkdir()
        (job.logs / "ps-0.log").write_text("here")
        return job

    def wait(self, job, member, *steps, is_over=lambda: False):
        said = []
        writer = Writer(*steps)
        found = await_log(job, member, on_wait=said.append, is_over=is_over, pause=writer.pause)
        return found, said

    def test_one_that_is_there_is_not_waited_for(self, job):
        assert self.wait(job, "ps-0") == (job.logs / "ps-0.log", [])

    def test_wait_for_a_log_is_announced_once(self, job):
        path = job.logs / "worker-3.log"
        found, said = self.wait(job, "worker-3", lambda: None, lambda: path.write_text("new"))
        assert found == path
        assert said == ["worker-3 has not started yet: waiting for what it writes"]

    @pytest.mark.parametrize("name", ["wroker-0", "worker", "../job/token", "ps-0.log"])
    def test_member_is_not_waited_for_when_its_name_is_impossible(self, job, name):
        with pytest.raises(RunFolderError, match=r"there is no member.*There are ps-0"):
            self.wait(job, name)

    def test_member_is_not_waited_for_in_a_job_that_is_over(self, job):
        with pytest.raises(RunFolderError, match=r"there is no member 'worker-3'.*There are ps-0"):
            self.wait(job, "worker-3", lambda: None, is_over=lambda: True)

    def test_error_names_a_way_to_wait_without_any_log(self, tmp_path):
        with pytest.raises(RunFolderError, match="No member has started yet; -f waits for it"):
            self.wait(Job(tmp_path), "worker-3", is_over=lambda: True)
