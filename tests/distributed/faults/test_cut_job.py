"""What `cut_pause.py --job` makes of the moments that members wrote down."""

import json

import pytest
from cut_job import Span, figures_of, read_notes, steps_of, tabulate, verdict_of


def pushes(*moments, epoch=1):
    return [{"epoch": epoch, "at": at} for at in moments]


def test_steps_lie_between_batches_of_one_epoch_and_the_first_is_left_out():
    notes = [*pushes(0.0, 0.5, epoch=0), *pushes(1.0, 1.1, 1.3), *pushes(5.0, 5.2, epoch=2)]
    assert steps_of(notes) == [Span(1.0, 1.1), Span(1.1, 1.3), Span(5.0, 5.2)]


def test_steps_that_have_a_moment_in_common_with_a_cut_are_told_apart():
    steps = [Span(0.0, 0.1), Span(0.1, 0.2), Span(0.2, 0.5), Span(0.5, 0.6), Span(0.6, 0.8)]
    # It begins within the second and ends with the third.
    found = figures_of(steps, [Span(0.15, 0.5)])
    assert found["during"] == {
        "steps": 2,
        "median_ms": pytest.approx(200),
        "p99_ms": pytest.approx(298),
        "longest_ms": pytest.approx(300),
    }
    assert (found["others"]["steps"], found["others"]["longest_ms"]) == (3, pytest.approx(200))
    assert found["longest_above_median_ms"] == pytest.approx(200)
    assert found["longest_above_longest_ms"] == pytest.approx(100)


def test_a_run_without_a_step_in_a_cut_has_nothing_to_compare():
    found = figures_of([Span(0.0, 0.1), Span(0.1, 0.2)], [Span(0.5, 0.6)])
    assert found["others"]["steps"] == 2
    assert not {"longest_above_median_ms", "longest_above_longest_ms"} & found.keys()
    assert verdict_of(found) == "no steps in a cut to set beside others"
    assert [line[1] for line in tabulate({"one": found})] == ["others"]


@pytest.mark.parametrize(("seconds", "verdict"), [(0.29, "met"), (0.31, "missed")])
def test_the_longest_step_in_a_cut_is_judged_beside_the_median_of_the_others(seconds, verdict):
    steps = [Span(0.0, 0.1), Span(0.1, 0.2), Span(1.0, 1.0 + seconds)]
    assert verdict_of(figures_of(steps, [Span(1.0, 1.1)])).endswith(f"is {verdict}")


def test_a_cut_within_a_step_and_one_around_it_overlap_it():
    step = Span(1.0, 2.0)
    assert step.overlaps([Span(1.4, 1.5)])
    assert step.overlaps([Span(0.0, 3.0)])
    assert not step.overlaps([Span(0.0, 1.0), Span(2.0, 3.0)])


def test_notes_of_one_role_are_read(tmp_path):
    for name, line in (("worker-7", {"at": 1}), ("worker-9", {"at": 2}), ("ps-8", {"at": 3})):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(line) + "\n")
    assert [one["at"] for one in read_notes(tmp_path, "worker")] == [1, 2]
