import pytest

from ctr_pipeline.distributed.coordination.exit_codes import format_exit


@pytest.mark.parametrize(
    ("exit_code", "words"),
    [
        (0, "exit code 0"),
        (3, "exit code 3"),
        (-9, "killed (SIGKILL)"),
        (137, "killed (SIGKILL)"),
        (-15, "ended by SIGTERM"),
        (143, "ended by SIGTERM"),
        (130, "ended by SIGINT"),
        (-11, "crashed (SIGSEGV)"),
        (-62, "crashed (signal 62)"),
    ],
)
def test_spoken(exit_code, words):
    assert format_exit(exit_code) == words
