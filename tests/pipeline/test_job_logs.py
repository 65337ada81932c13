import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctr_pipeline.distributed.local.log_file import LogFile
from ctr_pipeline.pipeline import job_control
from ctr_pipeline.pipeline.job_control import read_log


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
        patch.setattr(job_control, "_BLOCK_BYTES", block_bytes)
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
