import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import yaml

from ctr_pipeline.config.loader import config_from_mapping, load_config
from ctr_pipeline.embeddings.cut_storage import CutStorage
from ctr_pipeline.errors import ConfigError, FolderInUseError, RunFolderError, StorageError
from ctr_pipeline.pipeline.run_folder import RUN_LOCK, RunFolder, differing_keys
from ctr_pipeline.pipeline.trained_run import logged
from tests.distributed.waiting import wait_until

SETTINGS = {
    "data": {"train": "rows.csv", "label": "click"},
    "features": [{"columns": "city", "id": "vocabulary"}],
}


def loaded(*overrides):
    return config_from_mapping(SETTINGS, overrides)


def claim(run, *overrides, resume=False, overwrite=False):
    run.claim(loaded(*overrides), resume=resume, overwrite=overwrite)


@pytest.fixture
def run(tmp_path):
    return RunFolder(tmp_path / "out")


@pytest.fixture
def used(run):
    """A folder with results of the plain config."""
    with run.locked():
        run.keep_config(loaded())
    run.checkpoints.mkdir()
    run.metrics.write_text("{}")
    run.statistics.write_text("{}")
    return run


def test_a_new_folder_is_its_owner_s_alone_and_an_earlier_one_stays_shared(run, tmp_path):
    previous = os.umask(0)
    try:
        with run.locked():
            assert run.path.stat().st_mode & 0o777 == 0o700
        (tmp_path / "shared").mkdir(mode=0o750)
        with RunFolder(tmp_path / "shared").locked():
            assert (tmp_path / "shared").stat().st_mode & 0o777 == 0o750
    finally:
        os.umask(previous)


@pytest.mark.parametrize("name", [RUN_LOCK, "run.log"])
def test_a_planted_link_is_not_written_through(run, tmp_path, name):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    run.path.mkdir()
    run.config.write_text("name: x\n")
    (run.path / name).symlink_to(victim)

    def use():
        with run.locked(), logged(run):
            pytest.fail("it was opened")

    with pytest.raises(RunFolderError, match=f"{name}: is a link" if name == "run.log" else "link"):
        use()
    assert victim.read_text() == "precious"


def test_lock_makes_the_folder_and_opens_again(run):
    for _ in range(2):
        with run.locked():
            assert run.path.is_dir()


def test_run_folder_deletes_what_a_killed_process_left_half_written(used):
    (used.export / ".1.4711.tmp" / "variables").mkdir(parents=True)
    (used.path / ".metrics.json.4711.tmp").write_text("{")
    (used.checkpoints / "parts").mkdir()
    (used.checkpoints / "parts" / ".rows.bin.4711.tmp").write_bytes(b"half")
    with used.locked():
        assert not list(used.path.rglob("*.tmp"))
    assert used.metrics.exists()
    assert used.checkpoints.exists()


def test_scoring_jobs_that_live_keep_what_they_write(used):
    living, dead = RunFolder(used.scoring / "aa"), RunFolder(used.scoring / "bb")
    with dead.locked():
        (dead.path / ".scores.f32.4711.tmp").write_text("half")
    (used.evaluations / "checkpoint-000003").mkdir(parents=True)
    (used.evaluations / "checkpoint-000003" / ".metrics.json.4711.tmp").write_text("half")
    with living.locked():
        (living.path / ".scores.f32.4712.tmp").write_text("half")
        with used.locked():
            assert len(list(used.path.rglob("*.tmp"))) == 3
            for folder in (living, dead):
                os.utime(folder.path, (0, 0))
            used.discard_results()
        assert (living.path / ".scores.f32.4712.tmp").exists()
        assert not dead.path.exists()


HOLD = """
import sys
from pathlib import Path
from ctr_pipeline.pipeline.run_folder import RunFolder
with RunFolder(Path(sys.argv[1])).locked():
    print("held", flush=True)
    sys.stdin.read()
"""


def test_lock_of_another_process_is_respected_and_goes_with_it(run):
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(run.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as owner:
        assert owner.stdout.readline() == "held\n"
        with pytest.raises(RunFolderError, match=f"another run \\(process {owner.pid}\\)") as error:
            run.locked().__enter__()
        assert "choose another 'output'" in error.value.remedy
        owner.kill()
        owner.wait()
    with run.locked():
        pass


def test_lock_is_refused_twice_in_one_process_too(run):
    with run.locked(), pytest.raises(RunFolderError, match="another run"):
        run.locked().__enter__()


def test_the_next_of_a_series_waits_until_the_one_before_has_ended(run):
    told, entered = [], threading.Event()

    def go_on():
        with run.locked(series="0a1b", on_wait=told.append):
            entered.set()

    with run.locked(series="0a1b"):
        heir = threading.Thread(target=go_on)
        heir.start()
        wait_until(lambda: told)
        with pytest.raises(FolderInUseError, match=f"process {os.getpid()}"):
            run.locked(series="another job").__enter__()
        assert run.user_process() == os.getpid()
        assert not entered.is_set()
    heir.join(60)
    assert entered.is_set()
    name = f"process {os.getpid()} on {socket.gethostname()}"
    assert told == [f"waits until {name} has ended, to go on with its work"]


def test_whether_a_folder_is_in_use_is_asked_without_changing_it(used):
    (used.path / ".metrics.json.4711.tmp").write_text("{")
    with used.locked(), pytest.raises(FolderInUseError, match="another run"):
        used.require_unused()
    (used.path / ".metrics.json.4711.tmp").write_text("{")
    before = sorted(used.path.rglob("*"))
    used.require_unused()
    assert sorted(used.path.rglob("*")) == before


def test_a_folder_that_nobody_has_used_stays_absent(run):
    run.require_unused()
    assert not run.path.exists()


def test_folder_with_other_files_is_refused_and_untouched(tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(RunFolderError, match="holds other files and is not a run folder"):
        RunFolder(tmp_path).locked().__enter__()
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_file_in_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "out").write_text("mine")
    with pytest.raises(RunFolderError, match="is a file"):
        RunFolder(tmp_path / "out").locked().__enter__()


def test_folder_that_cannot_be_made_is_explained(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="cannot be written"):
        RunFolder(tmp_path / "file" / "out").locked().__enter__()


def test_empty_folder_is_fine(tmp_path):
    with RunFolder(tmp_path).locked():
        assert (tmp_path / RUN_LOCK).exists()


def test_kept_config_is_the_resolved_one_from_the_root(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with run.locked():
        run.keep_config(loaded())
    kept = yaml.safe_load(run.config.read_text())
    resolved = yaml.safe_load(loaded().resolved_yaml())
    assert kept["data"].pop("train") == str(tmp_path / "rows.csv")
    assert kept.pop("output") == str(tmp_path / "runs" / "ctrpipe")
    del resolved["data"]["train"], resolved["output"]
    assert kept == resolved


@pytest.mark.parametrize(
    ("paths", "same"),
    [
        ("rows.csv", True),
        ("./rows.csv", True),
        ("[rows.csv]", False),
        ("other.csv", False),
        ("/else/project/rows.csv", False),
        ("project/rows.csv", True),
    ],
)
def test_a_project_may_be_moved_with_its_runs(run, tmp_path, monkeypatch, paths, same):
    """Relative paths of a config then lead to other places than its run was made from."""
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    with run.locked():
        run.keep_config(loaded())
    monkeypatch.chdir(tmp_path)
    earlier = load_config(run.config).config
    different = differing_keys(earlier, loaded(f"data.train={paths}").config)
    assert different == ([] if same else ["data.train"])


def test_same_config_is_welcome_to_resume_or_to_start_anew(used):
    claim(used, resume=True)
    claim(used, overwrite=True)
    assert used.metrics.exists()


def test_results_are_not_replaced_unasked(used):
    with pytest.raises(RunFolderError, match="holds the results of an earlier run") as error:
        claim(used)
    assert "--resume" in error.value.remedy
    assert "--overwrite" in error.value.remedy
    assert used.metrics.exists()


def test_other_config_is_refused_and_every_key_named(used):
    before = used.config.read_bytes()
    with pytest.raises(RunFolderError) as error:
        claim(used, "model.embedding_dim=3", "train.seed=5", "data.split.test=0.2")
    message = str(error.value)
    for key in ("model.embedding_dim", "train.seed", "data.split.test"):
        assert key in message
    assert "holds results of another config" in message
    assert "--overwrite" in message
    assert used.config.read_bytes() == before
    with pytest.raises(RunFolderError, match=r"cannot be resumed: train\.seed differ"):
        claim(used, "train.seed=5", resume=True)


@pytest.mark.parametrize(
    "override",
    [
        "name=other",
        "train.epochs=99",
        "train.early_stopping=null",
        "train.checkpoint_seconds=1",
        "train.keep_checkpoints=7",
        "report.importance=true",
        "evaluation.gauc_column=user",
        "export.model_version=2",
        "runtime.threads=1",
    ],
)
def test_keys_that_no_trained_model_depends_on_may_change(used, override):
    before = used.config.read_bytes()
    claim(used, override, resume=True)
    # What stands there is kept until the run that goes on writes its own.
    assert used.config.read_bytes() == before
    with pytest.raises(RunFolderError, match="holds the results of an earlier run"):
        claim(used, override)


@pytest.mark.parametrize(
    "override",
    [
        "train.batch_size=5",
        "train.shuffle=false",
        "model.dropout=0.5",
        "data.train=other.csv",
        "data.missing_values=[NA]",
        "features=auto",
        "train.deterministic=true",
    ],
)
def test_keys_that_it_depends_on_may_not(used, override):
    with pytest.raises(RunFolderError, match=override.partition("=")[0].replace(".", r"\.")):
        claim(used, override, resume=True)


@pytest.mark.parametrize(
    "override",
    [
        "train.optimizer.learning_rate=0.5",
        "train.embeddings.vector.optimizer.learning_rate=0.5",
        "train.learning_rate_schedule.warmup_steps=5",
        "train.gradient_clip_norm=1.0",
        "train.scale_learning_rate=sqrt",
    ],
)
def test_keys_that_the_next_steps_follow_may_change_when_it_is_resumed(used, override):
    claim(used, override, resume=True)
    key = override.partition("=")[0]
    with pytest.raises(RunFolderError, match=f"another config: {key} differs") as refused:
        claim(used, override)
    assert "--resume to train on with the new values" in str(refused.value)
    with pytest.raises(RunFolderError) as refused:
        claim(used, override, "train.batch_size=5")
    assert "--resume" not in str(refused.value)


@pytest.fixture
def stored(tmp_path):
    """A run whose checkpoints lie at an address, on a machine that has no folder of it any more."""
    address = str(tmp_path / "store")
    run = RunFolder.of(loaded(f"output={tmp_path / 'out'}", at(address)).config)
    with run.locked():
        run.keep_config(loaded(at(address)))
    run.checkpoint_storage.write("parts/rows", b"x")
    shutil.rmtree(run.path)
    return run


def at(address):
    return f"runtime.checkpoints={address}"


def test_checkpoints_at_an_address_are_those_of_each_part_of_a_run(tmp_path):
    run = RunFolder(tmp_path, "s3://bucket/runs/")
    assert run.checkpoint_storage.address == "s3://bucket/runs"
    assert run.refit.checkpoint_storage.address == "s3://bucket/runs/refit"
    assert run.member(1).refit.checkpoints_address == "s3://bucket/runs/members/1/refit"


def test_stored_checkpoints_are_not_replaced_unasked(stored):
    with pytest.raises(RunFolderError, match="holds the checkpoints of an earlier run") as caught:
        claim(stored)
    assert caught.value.place == stored.checkpoints_at
    assert "--resume" in caught.value.remedy


def test_stored_checkpoints_are_resumed_by_the_same_config_alone(stored):
    claim(stored, at(stored.checkpoints_at), "train.epochs=9", resume=True)
    with pytest.raises(RunFolderError, match=r"cannot be resumed: model.embedding_dim differs"):
        claim(stored, at(stored.checkpoints_at), "model.embedding_dim=5", resume=True)


def test_stored_checkpoints_of_a_config_that_cannot_be_read_are_refused(stored):
    stored.checkpoint_storage.write("config.resolved.yaml", b"train: [")
    with pytest.raises(StorageError, match=r"config.resolved.yaml: the config of the checkpoints"):
        claim(stored, resume=True)


def test_a_place_of_other_objects_is_refused_and_untouched(tmp_path):
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "photo.jpg").write_bytes(b"x")
    run = RunFolder(tmp_path / "out", str(tmp_path / "store"))
    for options in ({}, {"resume": True}, {"overwrite": True}):
        with pytest.raises(StorageError, match=r"holds other objects, such as 'photo.jpg'"):
            claim(run, **options)
    assert (tmp_path / "store" / "photo.jpg").exists()


def test_overwriting_discards_stored_checkpoints(stored):
    claim(stored, overwrite=True)
    assert stored.checkpoint_storage.list("")
    with stored.locked():
        stored.discard_results()
    assert not stored.checkpoint_storage.list("")


def test_a_job_that_is_left_leaves_its_checkpoints(stored):
    CutStorage(stored.checkpoint_storage).begin("job-1")
    kept = len(stored.checkpoint_storage.list("")) - 1
    stored.job.mkdir(parents=True)
    (stored.job / "spec.json").write_text("{}")
    for _ in range(2):
        stored.leave_job()
        assert not stored.job.exists()
        assert CutStorage(stored.checkpoint_storage).job() is None
        assert len(stored.checkpoint_storage.list("")) == kept > 0


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("s4://bucket/a", "'s4://' is no storage of runs. Did you mean 's3://'?"),
        ("s3://", "names no place"),
    ],
)
def test_an_address_of_checkpoints_that_is_none_is_refused(address, message):
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        loaded(at(address))
    assert "runtime.checkpoints" in str(caught.value)


def test_overwrite_touches_nothing_before_there_is_something_better(used):
    before = used.config.read_bytes()
    claim(used, "train.seed=5", overwrite=True)
    assert used.metrics.exists()
    assert used.config.read_bytes() == before


def test_discarding_results_keeps_data_and_statistics(used):
    used.discard_results()
    assert not used.metrics.exists()
    assert not used.checkpoints.exists()
    assert used.statistics.exists()


def test_folder_without_results_takes_any_config(run):
    with run.locked():
        run.keep_config(loaded())
        claim(run, "train.seed=5")
        run.metrics.write_text("{}")
        with pytest.raises(RunFolderError, match="holds results of another config"):
            claim(run, "train.seed=5")


def test_unreadable_config_beside_results_is_refused(used):
    used.config.write_text("data: [")
    with pytest.raises(RunFolderError, match="holds results, but its config cannot be read"):
        claim(used)
    claim(used, overwrite=True)


def test_differing_keys_are_dotted_and_lists_are_compared_whole():
    changed = "features=[{columns: city, id: {vocabulary: {min_count: 3}}}]"
    other = loaded("model.embedding_dim=3", changed).config
    assert differing_keys(loaded().config, other) == ["features", "model.embedding_dim"]
    assert differing_keys(other, other) == []


def test_paths_name_what_exists(used):
    assert set(used.paths()) == {"metrics", "statistics", "config"}
    assert all(isinstance(path, Path) for path in used.paths().values())
