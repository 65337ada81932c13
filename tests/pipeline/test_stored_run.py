"""A run that is kept at an address, here a folder: who may work on it, and who reads it."""

import json
import signal
import threading
import time
from pathlib import Path

import pytest

from ctr_pipeline import interruption
from ctr_pipeline.cli.main import main
from ctr_pipeline.config.loader import config_from_mapping, load_config
from ctr_pipeline.errors import FolderInUseError, StorageError
from ctr_pipeline.pipeline import stored_run
from ctr_pipeline.pipeline.run_folder import RunFolder, find_run
from ctr_pipeline.pipeline.stored_run import StoredRun, is_left_out
from ctr_pipeline.storage.commit_log import CommitWriter, FencedError, fenced
from ctr_pipeline.storage.folder_commits import FolderCommits
from ctr_pipeline.storage.local_disk import LocalDisk
from ctr_pipeline.storage.opening import open_storage
from ctr_pipeline.storage.protocol import StorageAwayError, StorageDeniedError


@pytest.fixture(autouse=True)
def quick(monkeypatch, tmp_path):
    monkeypatch.setattr(stored_run, "COMMIT_SECONDS", 0.05)
    monkeypatch.setattr(stored_run, "SILENT_SECONDS", 5.0)
    monkeypatch.setattr(stored_run, "LOOK_SECONDS", 0.5)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def address(tmp_path):
    return f"file://{tmp_path}/store/clicks"


def loaded(address, scratch=None):
    mapping = {"name": "clicks", "data": {"train": "rows.csv"}, "output": address}
    return config_from_mapping(mapping, [] if scratch is None else [f"runtime.scratch={scratch}"])


def run_at(address, scratch=None):
    return RunFolder.of(loaded(address, scratch).config)


def names_in(address):
    return set(StoredRun(address, Path("unused")).places())


def test_stored_run_leaves_out_caches_secrets_and_checkpoints():
    kept = ("metrics.json", "export/1/model.pb", "job/spec.json", "logs/worker-0.log")
    left_out = ("cache/encoded/rows.bin", "job/token", "job/tls/ca.pem", "job/ledger.sqlite",
                "checkpoints/spilled", "members/0/checkpoints/x", "replicas/token",
                "scoring/1/job/token", "scores/test-0.f32")  # fmt: skip
    assert [name for name in (*kept, *left_out) if not is_left_out(name)] == list(kept)


def test_a_run_is_kept_and_found_by_its_address_alone(address, tmp_path):
    run = run_at(address, tmp_path / "scratch")
    with run.locked():
        run.keep_config(loaded(address))
        run.begin_training()
        run.metrics.write_text("{}")
    found = find_run(Path(address))
    assert found.path != run.path
    assert found.metrics.read_text() == "{}"
    assert found.checkpoints.is_dir()
    assert found.place == address
    again = load_config(found.path).config
    assert again.stored_at == address
    assert again.run_folder == found.path
    assert again.checkpoints_at == f"{address}/checkpoints"


def test_runs_below_an_address_are_listed_by_a_few_files(address, tmp_path, capsys):
    run = run_at(address, tmp_path / "scratch")
    with run.locked():
        run.keep_config(loaded(address))
        # Commits of its checkpoints are none of runs.
        CommitWriter(open_storage(f"{address}/checkpoints")).commit([], {})
        run.metrics.write_text('{"test": {"auc": 0.75, "logloss": 0.5}}')
    store = Path(address.removeprefix("file://")).parent
    other = f"file://{store}/deep/other"
    with run_at(other, tmp_path / "scratch").locked():
        pass
    (store / "rows.csv").write_text("a,b\n")
    assert main(["runs", f"file://{store}", "--json"]) == 0
    listed = {run["folder"]: run for run in json.loads(capsys.readouterr().out)["runs"]}
    assert set(listed) == {address, other}
    assert (listed[address]["model"], listed[address]["auc"]) == ("deepfm", 0.75)
    assert listed[address]["state"] == "finished"
    assert listed[other]["state"] == "not trained"
    # At the run itself, and where there is none.
    assert main(["runs", address]) == 0
    assert address in capsys.readouterr().out.replace("\n", "")
    assert main(["runs", f"file://{store}/none"]) == 0
    assert f"There are no runs in file://{store}/none" in capsys.readouterr().out
    assert not (tmp_path / "cache").exists()


def test_a_copy_of_a_working_copy_is_a_run_folder_of_its_own(address, tmp_path):
    run = run_at(address, tmp_path / "scratch")
    with run.locked():
        run.keep_config(loaded(address))
    copied = tmp_path / "copied"
    run.path.rename(copied)
    assert load_config(copied).config.stored_at is None
    assert load_config(copied).config.run_folder == copied


def test_stored_run_keeps_what_happens_while_the_work_goes_on(address, tmp_path):
    run = run_at(address)
    with run.locked():
        run.path.joinpath("history.csv").write_text("1")
        until = time.monotonic() + 60
        while "history.csv" not in names_in(address):
            assert time.monotonic() < until
            time.sleep(0.02)


def test_one_process_at_a_time_works_on_a_run(address, tmp_path):
    with run_at(address, tmp_path / "one").locked():
        other = run_at(address, tmp_path / "two")
        with pytest.raises(FolderInUseError, match=r"the run 'clicks' \(process \d+ on ") as caught:
            other.locked().__enter__()
        assert caught.value.place == address


def test_another_host_that_still_commits_is_left_alone(address, tmp_path, monkeypatch):
    with run_at(address, tmp_path / "one").locked():
        monkeypatch.setattr(stored_run.socket, "gethostname", lambda: "elsewhere")
        with pytest.raises(FolderInUseError, match="works on this run"):
            run_at(address, tmp_path / "two").locked().__enter__()


def test_a_run_whose_process_is_gone_is_taken_over(address, tmp_path, monkeypatch):
    told = []
    lost = run_at(address, tmp_path / "one")
    commits = FolderCommits(
        LocalDisk(address), lost.path, left_out=is_left_out, survives=lambda _: False
    )
    commits.begin()
    (lost.path / "metrics.json").write_text("{}")
    owner = {"name": "lost", "host": "elsewhere", "process": 1, "process_start": 1, "since": "then"}
    commits.commit({"owner": owner, "over": False})
    run = run_at(address, tmp_path / "two")
    run.stored.log = told.append
    monkeypatch.setattr(stored_run, "SILENT_SECONDS", 0.1)
    with run.locked():
        assert run.metrics.exists()
        with pytest.raises(FencedError):
            commits.commit({"owner": owner, "over": False})
    assert "the run 'lost' (process 1 on elsewhere, since then) worked on" in told[0]


def take_over(address, folder):
    other = FolderCommits(
        LocalDisk(address), folder, left_out=is_left_out, survives=lambda _: False
    )
    other.begin()
    owner = {"name": "other", "host": "b", "process": 7, "process_start": 1, "since": "now"}
    other.commit({"owner": owner, "over": False})


def test_a_process_that_is_replaced_ends_with_an_error_that_names_the_other(address, tmp_path):
    """The main thread is in the middle of its work when the other one takes over."""
    run = run_at(address, tmp_path / "one")

    def work():
        with run.locked(), interruption.handle_signals():
            threading.Thread(target=take_over, args=(address, tmp_path / "two")).start()
            time.sleep(60)

    with pytest.raises(FencedError, match=r"'other' \(process 7 on b, since now\) has taken over"):
        work()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_the_other_is_named_where_checkpoints_are_refused_first(address, tmp_path):
    def work():
        with run_at(address, tmp_path / "one").locked():
            take_over(address, tmp_path / "two")
            raise fenced(f"{address}/checkpoints")

    with pytest.raises(FencedError, match=r"'other' \(process 7 on b, since now\) has taken over"):
        work()


def test_an_address_with_something_else_is_refused(address, tmp_path):
    LocalDisk(address).write("photos/1.jpg", b"x")
    with pytest.raises(StorageError, match=r"holds other objects, such as 'photos/1\.jpg'"):
        run_at(address).locked().__enter__()
    with pytest.raises(StorageError, match="holds other objects"):
        find_run(Path(address))


def test_an_address_without_a_run_is_told(address):
    with pytest.raises(StorageError, match=r"there is no run here\. Name the 'output'"):
        find_run(Path(address))


def test_the_results_of_another_run_are_named_by_their_address(address, tmp_path):
    run = run_at(address, tmp_path / "one")
    with run.locked():
        run.keep_config(loaded(address))
        run.metrics.write_text("{}")
    other = run_at(address, tmp_path / "two")
    with (
        pytest.raises(Exception, match="holds the results of an earlier run") as caught,
        other.locked(),
    ):
        other.claim(loaded(address), resume=False, overwrite=False)
    assert caught.value.place == address


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (
            StorageDeniedError("refuses it", place="s3://b/a", remedy="Check them"),
            "Check them; then ",
        ),
        (StorageAwayError("does not answer", place="s3://b/a", remedy="Wait"), "Wait; then "),
        (StorageError("is no place", place="s3://b/a"), ""),
    ],
)
def test_work_that_can_no_longer_be_kept_is_left_and_named(address, monkeypatch, error, remedy):
    def fail(*_):
        raise error

    run = run_at(address)
    run.stored.patience_seconds = 0

    def work():
        with run.locked():
            run.metrics.write_text("{}")
            monkeypatch.setattr(LocalDisk, "create", fail)

    with pytest.raises(type(error)) as caught:
        work()
    assert str(caught.value) == (
        f"s3://b/a: {error.message}, so what the run did last lies in {run.path} alone. {remedy}"
        "--resume on this machine keeps it there"
    )
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(run.path.parents[2]))
    assert run.metrics.exists()
    with run_at(address, run.path.parent).locked():
        pass
    assert "metrics.json" in names_in(address)


def test_the_storage_of_a_run_is_opened_once(address, monkeypatch, tmp_path):
    opened = []

    def open_one(address):
        opened.append(address)
        return LocalDisk(address)

    monkeypatch.setattr(stored_run, "open_storage", open_one)
    run = StoredRun(address, tmp_path / "scratch", "clicks")
    with run.kept():
        (run.folder / "metrics.json").write_text("{}")
    run.fetch(is_used=lambda: False)
    assert "metrics.json" in run.places()
    assert opened == [address]
