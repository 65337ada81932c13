import pytest

from ctr_pipeline.dataset.ingested import SplitRows
from ctr_pipeline.distributed.master.status import RecordCounts
from ctr_pipeline.evaluation.calibration import Interval
from ctr_pipeline.evaluation.importance import ImportanceRow
from ctr_pipeline.reporting.data import PlanRow
from ctr_pipeline.reporting.findings import decide_findings
from ctr_pipeline.specs.columns import ColumnType
from tests.reporting.fake_report import a_job, evaluation, lifelike_report, parity_proof

RESULT = evaluation(1, groups=False)


def texts(**changes):
    return [f"{one.tone}: {one.text}" for one in decide_findings(lifelike_report(3, 3, **changes))]


def changed(**fields):
    return RESULT.model_copy(update=fields)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"test": None, "valid": None}, "look: There are no held-out rows"),
        ({"test": changed(auc=0.99)}, "look: An AUC of 0.9900 is too good"),
        ({"test": changed(logloss=0.7)}, "look: On the test rows the model is no better"),
        (
            {"test": changed(calibration=1.1, calibration_interval=Interval(low=1.05, high=1.15))},
            "look: Predictions are 10.0 % too high",
        ),
        (
            {"test": changed(calibration=0.9, calibration_interval=Interval(low=0.85, high=0.95))},
            "look: Predictions are 10.0 % too low",
        ),
        (
            {"test": changed(calibration=1.0, calibration_interval=Interval(low=0.9, high=1.1))},
            "good: Predictions are calibrated",
        ),
        (
            {"test": changed(auc=0.70), "valid": changed(auc=0.75)},
            "note: Test AUC is 0.0500 below validation AUC",
        ),
        (
            {
                "splits": {
                    "train": SplitRows(files=(), part_rows=(), num_rows=10, num_positive=2),
                    "test": SplitRows(files=(), part_rows=(), num_rows=10, num_positive=3),
                }
            },
            "look: The click rate drifts: 20.0 % in training, 30.0 % in the test rows",
        ),
        (
            {
                "importance": (
                    ImportanceRow(feature="leak", auc_drop=0.3, logloss_rise=0.2),
                    ImportanceRow(feature="b", auc_drop=0.01, logloss_rise=0.01),
                    ImportanceRow(feature="idle", auc_drop=0.0, logloss_rise=-0.001),
                )
            },
            "look: 'leak' carries 97 % of all importance: check that it is known before the click",
        ),
        (
            {"parity": parity_proof(10, 0.1)},
            "look: The exported model does not score as the trainer does",
        ),
        (
            {},
            "good: The job recovered 2 times from a failure, in at most 3.4 s; no record was lost, "
            "24,576 were trained again.",
        ),
        (
            {"job": a_job(records=RecordCounts(320_000, 319_936, 0, 64))},
            "look: 64 of 320,000 records were given up",
        ),
        ({"notes": ("Disk was slow.",)}, "note: Disk was slow."),
    ],
)
def test_each_finding_is_made_when_its_numbers_say_so(changes, expected):
    assert any(text.startswith(expected) for text in texts(**changes)), texts(**changes)


def suspected_plan(**suspicions):
    return tuple(
        PlanRow(feature=name, column_type=ColumnType.NUMBER, suspicion=said)
        for name, said in suspicions.items()
    )


def test_a_column_that_alone_says_too_much_is_named_once():
    rank = "alone ranks the rows with an AUC of 0.971"
    found = texts(
        plan=suspected_plan(leak=rank, b=None),
        importance=tuple(
            ImportanceRow(feature=name, auc_drop=drop, logloss_rise=drop)
            for name, drop in (("leak", 0.4), ("b", 0.01), ("c", 0.01))
        ),
    )
    assert f"look: 'leak' {rank}: check that it is known before the click." in found
    assert sum("leak" in text for text in found) == 1


def test_a_feature_that_matters_most_by_little_is_no_alarm():
    drops = (("user", 0.1), ("b", 0.01), ("c", 0.01))
    found = texts(
        importance=tuple(
            ImportanceRow(feature=name, auc_drop=drop, logloss_rise=drop) for name, drop in drops
        )
    )
    assert "note: 'user' carries 83 % of all importance." in found


@pytest.mark.parametrize("is_measured", [True, False])
def test_an_auc_that_is_too_good_names_the_column_to_look_at_first(is_measured):
    drops = (("quiet", 0.01), ("leak", 0.3)) if is_measured else ()
    data = lifelike_report(
        3,
        3,
        test=changed(auc=0.988),
        importance=tuple(
            ImportanceRow(feature=name, auc_drop=drop, logloss_rise=drop) for name, drop in drops
        ),
    )
    known = data.statistics.columns
    alone = max(
        (row.feature for row in data.plan if row.feature in known),
        key=lambda name: known[name].label_information.mutual_information,
    )
    first = "leak" if is_measured else alone
    expected = (
        "An AUC of 0.9880 is too good for clicks: look for a column that is written after the "
        f"click. Look at '{first}' first."
    )
    assert expected in [one.text for one in decide_findings(data)]


def test_columns_that_are_left_out_are_named():
    left = {"id": "it is kept out by the config"}
    assert "note: Left out of the model: id." in texts(left_out=left)


def test_findings_begin_with_what_needs_action():
    tones = [text.split(":")[0] for text in texts(test=changed(auc=0.99))]
    assert tones == sorted(tones, key=["look", "good", "note"].index)
    assert tones[0] == "look"


def test_idle_features_and_last_epoch_are_named():
    history = lifelike_report(1, 1).history[:2]
    found = texts(
        importance=(
            ImportanceRow(feature="used", auc_drop=0.1, logloss_rise=0.1),
            ImportanceRow(feature="idle", auc_drop=0.0, logloss_rise=-0.001),
        ),
        history=history,
    )
    assert "note: Shuffling does no harm, so they may be left out: idle." in found
    assert any("more epochs may improve" in text for text in found)
