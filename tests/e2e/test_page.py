"""The page of a job of real processes, in a real browser, while members are killed."""

import http.client
import json
import os
import random
import re
import signal
import subprocess
import sys
import time

import pytest

from tests.e2e.browser import CHROMIUM, Browser

pytestmark = [pytest.mark.slow, pytest.mark.e2e, pytest.mark.timeout(1800)]

CONFIG = """
name: clicks<b>
data:
  train: rows.tsv
  format: tsv
  columns: [label, item, user, hour, price]
  label: label
  split: {valid: 0.1, test: 0.1, by: order}
model: {name: deepfm, embedding_dim: 4, hidden_units: [16]}
train: {epochs: 100000, batch_size: 16, early_stopping: null, checkpoint_seconds: 2}
runtime: {mode: processes, parameter_servers: 2, workers: {min: 1, max: 2}}
output: runs/x
"""
PATIENCE_SECONDS = 400.0


def start(*arguments, folder, output):
    with (folder / output).open("w") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "ctr_pipeline", *arguments],
            cwd=folder,
            stdout=file,
            stderr=subprocess.STDOUT,
        )


def await_that(found, process, output):
    """The first true answer, before the process ends."""
    until = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < until:
        if answer := found():
            return answer
        assert process.poll() is None, output.read_text()
        time.sleep(0.3)
    raise AssertionError(f"never came\n{output.read_text()}")


def rows(number):
    draw = random.Random(7)
    for _ in range(number):
        item, user = draw.randrange(400), draw.randrange(900)
        label = int(draw.random() < 0.1 + 0.6 * (item % 3 == 0))
        yield f"{label}\ti{item}\tu{user}\t{draw.randrange(24)}\t{draw.random():.3f}\n"


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """A job that trains until somebody stops it."""
    folder = tmp_path_factory.mktemp("page")
    (folder / "rows.tsv").write_text("".join(rows(6000)))
    (folder / "config.yaml").write_text(CONFIG)
    process = start("run", "config.yaml", folder=folder, output="run.txt")
    yield folder, process
    process.kill()
    process.wait()


def ask_master(folder, path, token=None):
    endpoint = json.loads((folder / "runs/x/job/endpoint.json").read_text())
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    connection = http.client.HTTPConnection(endpoint["page_address"], timeout=30)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    except http.client.HTTPException as error:
        raise ConnectionError from error
    finally:
        connection.close()


def status_of(folder):
    """What the master serves to programs; None while none answers."""
    try:
        token = (folder / "runs/x/job/token").read_text().strip()
        code, body = ask_master(folder, "/status.json", token)
    except OSError:
        return None
    return json.loads(body) if code == 200 else None


def await_status(job, condition):
    folder, process = job

    def look():
        found = status_of(folder)
        return found if found is not None and condition(found) else None

    return await_that(look, process, folder / "run.txt")


def kill_member(job, name):
    found = await_status(
        job,
        lambda found: found["state"] == "training" and restarts_of(found, name) is not None,
    )
    (pid,) = (one["pid"] for one in found["members"] if one["name"] == name)
    os.kill(pid, signal.SIGKILL)


def test_the_master_serves_what_status_prints(job):
    folder, _ = job
    # From then on, nothing that is known of a job becomes unknown.
    served = await_status(job, lambda found: found["checkpoint"] and found["history"])
    printed = subprocess.run(
        [sys.executable, "-m", "ctr_pipeline", "status", "runs/x", "--json"],
        cwd=folder,
        capture_output=True,
        check=True,
        timeout=PATIENCE_SECONDS,
    )
    assert keys_of(json.loads(printed.stdout)) == keys_of(served)
    token = (folder / "runs/x/job/token").read_text().strip()
    code, page = ask_master(folder, "/", token)
    assert code == 200
    assert "clicks&lt;b&gt;" in page
    assert token not in page
    assert ask_master(folder, "/")[0] == 401


def keys_of(payload):
    """The structure of a mapping, two levels deep."""
    return {key: sorted(one) if isinstance(one, dict) else None for key, one in payload.items()}


def number(text):
    return int(text.replace(",", ""))


def restarts_of(status, name):
    """How often a member that runs was started again; None: it does not run."""
    return next(
        (
            one["restarts"]
            for one in status["members"]
            if one["name"] == name and one["state"] == "running"
        ),
        None,
    )


def shown_as_repeated(browser):
    """Records that the second disruption cost, as the page says."""
    prices = browser.evaluate(
        "[...document.querySelectorAll('.price')].map((one) => one.innerText)"
    )
    return number(re.match(r"([\d,]+) records? repeated", prices[1])[1])


def repeated_in(status):
    """The same as the master says."""
    return status["disruptions"][1]["records_repeated"]


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium to look with")
def test_a_browser_shows_the_job_and_what_a_kill_cost(job, tmp_path):
    folder, _ = job
    await_status(job, lambda found: found["checkpoint"] is not None)
    ui = start("ui", "runs/x", "--no-browser", folder=folder, output="ui.txt")
    try:
        output = folder / "ui.txt"
        address = await_that(lambda: output.read_text().strip(), ui, output)
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/open/[\w-]{43}", address)
        with Browser(tmp_path / "profile") as browser:
            browser.resize(1200, 900)
            browser.open(address)
            browser.wait_for("document.querySelector('.cards') !== null")
            assert browser.evaluate("location.pathname") == "/"
            assert "clicks<b>" in browser.text

            kill_member(job, "worker-1")
            browser.wait_for("document.body.innerText.includes('worker 1 was killed')")
            # Failures within half a second of each other would be one disruption.
            await_status(job, lambda found: restarts_of(found, "worker-1") == 1)
            kill_member(job, "ps-0")
            disruptions = await_status(
                job,
                lambda found: (
                    len(found["disruptions"]) > 1 and found["disruptions"][1]["seconds_lost"] > 0
                ),
            )["disruptions"]
            assert len(disruptions) == 2
            browser.wait_for("document.body.innerText.includes('The job has recovered')")
            # The page is as old as its last look; meanwhile more was repeated.
            browser.wait_for("document.querySelectorAll('.price').length === 2")
            await_status(job, lambda found: shown_as_repeated(browser) == repeated_in(found))

            # It brings itself up to date, and what was opened stays open.
            browser.evaluate("document.querySelector('#learning details').open = true")
            shown = "document.querySelector('.kicker').innerText"
            before = browser.evaluate(shown)
            browser.wait_for(f"{shown} !== {json.dumps(before)}")
            assert browser.evaluate("document.querySelector('#learning details').open")
            text = browser.text
            served = await_status(job, lambda found: found["records"]["trained"] > 0)
            trained = number(re.search(r"([\d,]+) of [\d,]+ records", text)[1])
            assert 0 < trained <= served["records"]["trained"] + served["records"]["repeated"]
            auc = re.search(r"Validation AUC\s+(0\.\d{4})", text)[1]
            assert any(f"{one['valid_auc']:.4f}" == auc for one in served["history"])
            largest = max(served["tables"], key=lambda one: (one["row_bytes"], one["name"]))
            assert largest["features"][0] in text
            assert "Load of the partitions" in text

            assert browser.screenshot(tmp_path / "wide.png") > 900
            for width in (390, 820):
                browser.resize(width, 844)
                time.sleep(0.5)
                # Nothing but tables scrolls sideways.
                assert browser.evaluate("document.documentElement.scrollWidth") <= width
                browser.screenshot(tmp_path / f"{width}.png")
            assert browser.messages == []

            stop = start("stop", "runs/x", folder=folder, output="stop.txt")
            assert stop.wait(PATIENCE_SECONDS) == 0
            browser.wait_for("document.body.dataset.over !== 'no'")
            browser.wait_for("document.body.innerText.includes('Stopped: epoch')")
        assert ui.wait(PATIENCE_SECONDS) == 0
        # Nobody else, not even with the address that was printed.
        assert address in output.read_text()
    finally:
        ui.kill()
        ui.wait()
