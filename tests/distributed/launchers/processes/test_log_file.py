from hypothesis import given
from hypothesis import strategies as st

from ctr_pipeline.distributed.launchers.processes.log_file import NUM_OLD_FILES, LogFile


def files(path):
    names = [path.name, *(f"{path.name}.{number}" for number in range(1, 10))]
    return [path.with_name(name) for name in names if path.with_name(name).exists()]


def test_a_planted_link_is_not_followed_and_the_last_lines_stay(tmp_path):
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "worker-0.log").symlink_to(tmp_path / "victim")
    log = LogFile(tmp_path / "worker-0.log")
    log.write(b"hello\n")
    assert (tmp_path / "victim").read_text() == "precious"
    assert log.tail() == "hello"
    log.close()


def test_appends_to_what_is_there(tmp_path):
    path = tmp_path / "logs" / "x.log"
    for text in (b"one\n", b"two\n"):
        log = LogFile(path)
        log.write(text)
        log.close()
    assert path.read_bytes() == b"one\ntwo\n"


@given(pieces=st.lists(st.binary(min_size=1, max_size=12), max_size=60))
def test_sizes_and_number_of_files_are_bounded_and_the_newest_bytes_kept(tmp_path_factory, pieces):
    path = tmp_path_factory.mktemp("log") / "x.log"
    log = LogFile(path, max_bytes=20)
    for piece in pieces:
        log.write(piece)
    log.close()
    found = files(path)
    assert len(found) <= 1 + NUM_OLD_FILES
    assert all(one.stat().st_size <= 20 for one in found)
    content = b"".join(one.read_bytes() for one in reversed(found))
    assert b"".join(pieces).endswith(content)
    assert len(content) >= min(len(b"".join(pieces)), 2 * (20 - 12))


class TestTail:
    def test_tail_holds_all_of_a_short_text(self, tmp_path):
        log = LogFile(tmp_path / "x.log")
        log.write(b"a\nb")
        log.write(b"c\n")
        assert log.tail() == "a\nbc"
        log.close()

    def test_tail_holds_the_last_whole_lines_of_a_long_text(self, tmp_path):
        log = LogFile(tmp_path / "x.log")
        for number in range(10_000):
            log.write(b"line %d\n" % number)
        assert log.tail().splitlines() == [f"line {number}" for number in range(9_940, 10_000)]
        log.close()

    def test_tail_of_one_endless_line_is_bounded(self, tmp_path):
        log = LogFile(tmp_path / "x.log")
        log.write(b"x" * 10**6)
        assert len(log.tail()) <= 16 << 10
        log.close()

    def test_tail_begins_anew_when_another_process_writes(self, tmp_path):
        log = LogFile(tmp_path / "x.log")
        log.write(b"a\n")
        log.begin()
        log.write(b"b\n")
        assert log.tail() == "b"
        log.close()


def test_a_disk_that_takes_nothing_stops_nobody(tmp_path):
    (tmp_path / "logs").write_text("a file where the folder would be")
    log = LogFile(tmp_path / "logs" / "x.log")
    log.write(b"first\n")
    (tmp_path / "logs").unlink()
    log.write(b"second\n")
    assert log.tail() == "first\nsecond"
    assert (tmp_path / "logs" / "x.log").read_bytes() == b"second\n"
    log.close()
