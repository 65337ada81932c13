import pytest

from ctr_pipeline.distributed.coordination.relaunch import decide_relaunch, explain_end


@pytest.mark.parametrize("reason", ["killed", "evicted", "preempted", "node_lost", "completed"])
def test_relaunch_is_immediate_and_blames_nobody_after_an_end_from_outside(reason):
    relaunch = decide_relaunch(reason, registered=True, ends_in_row=1)
    assert (relaunch.delay_seconds, relaunch.blames_program) == (0.0, False)


@pytest.mark.parametrize("reason", ["error", "out_of_memory"])
def test_the_program_waits_from_its_first_fault(reason):
    relaunch = decide_relaunch(reason, registered=True, ends_in_row=1)
    assert (relaunch.delay_seconds, relaunch.blames_program) == (0.5, True)


def test_ending_well_without_ever_joining_is_a_fault():
    assert decide_relaunch("completed", registered=False, ends_in_row=1).blames_program


@pytest.mark.parametrize(
    ("reason", "delays"),
    [
        ("error", [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]),
        ("killed", [0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0]),
    ],
)
def test_delays_double_up_to_a_minute(reason, delays):
    found = [
        decide_relaunch(reason, registered=True, ends_in_row=number).delay_seconds
        for number in range(1, len(delays) + 1)
    ]
    assert found == delays
    assert decide_relaunch(reason, registered=True, ends_in_row=10**6).delay_seconds == 60.0


def test_an_end_whose_cause_the_launcher_changes_blames_nobody():
    found = decide_relaunch("out_of_memory", registered=True, ends_in_row=1, is_remedied=True)
    assert (found.delay_seconds, found.blames_program) == (0.0, False)
    found = decide_relaunch("out_of_memory", registered=True, ends_in_row=2, is_remedied=True)
    assert (found.delay_seconds, found.blames_program) == (0.5, False)


def test_out_of_memory_names_the_size_and_the_remedy():
    text = explain_end("out_of_memory", 71, member="worker 3", rss_bytes=3 * 2**30)
    assert text == (
        "worker 3 ran out of memory (it last held 3.0 GiB): give it more, or set a smaller "
        "train.batch_size"
    )
    remedy = "its next pod may use 3Gi"
    text = explain_end("out_of_memory", 137, member="ps 1", rss_bytes=0, remedy=remedy)
    assert text == "ps 1 ran out of memory; its next pod may use 3Gi"
    advice = "set kubernetes.workers.memory to 3Gi"
    text = explain_end("out_of_memory", 137, member="worker 1", rss_bytes=0, advice=advice)
    assert text == f"worker 1 ran out of memory: {advice}"


@pytest.mark.parametrize(
    ("reason", "code", "text"),
    [
        ("error", 1, "worker 0 failed (exit code 1)"),
        ("error", -11, "worker 0 crashed (SIGSEGV)"),
        ("error", -6, "worker 0 crashed (SIGABRT)"),
        ("killed", -9, "worker 0 was killed (SIGKILL)"),
        ("killed", -15, "worker 0 was ended by SIGTERM"),
        ("killed", 143, "worker 0 was ended by SIGTERM"),
        ("killed", None, "worker 0 was killed"),
        ("evicted", 137, "worker 0 was evicted"),
        ("preempted", 143, "worker 0 gave way to a pod of higher priority"),
        ("node_lost", None, "worker 0 was lost with its node"),
        ("not_started", 70, "worker 0 could not be started"),
        ("not_started", 73, "worker 0 ended, as the system allowed it no more threads"),
        ("completed", 0, "worker 0 ended without being asked to"),
        ("out_of_memory", 71, "worker 0 ran out of memory: give it more, or set a smaller"),
    ],
)
def test_every_end_is_told(reason, code, text):
    assert explain_end(reason, code, member="worker 0", rss_bytes=0).startswith(text)
