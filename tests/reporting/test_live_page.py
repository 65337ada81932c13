import base64
import hashlib
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from ctr_pipeline.distributed.coordination.members import MemberEnd
from ctr_pipeline.distributed.master.status import JobEvent, MasterErrors
from ctr_pipeline.reporting.render import LIVE_POLICY, render_live
from tests.reporting.fake_report import WORLDS, a_job, live_data

HOSTILE = "</script><img src=x onerror=alert(1)>\u202e{{ 7*7 }}\x00"


class Page(HTMLParser):
    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.inside, self.tags, self.texts, self.scripts, self.attributes = [], [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes.extend(name for name, _ in attrs)
        self.inside.append(tag)

    def handle_endtag(self, tag):
        while self.inside and self.inside.pop() != tag:
            pass

    def handle_data(self, data):
        if self.inside and self.inside[-1] == "script":
            self.scripts.append(data)
        elif self.inside and self.inside[-1] != "style":
            self.texts.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())


def test_live_page_shows_what_a_job_does():
    text = Page(render_live(live_data())).text
    for expected in (
        "criteo-deepfm · training",
        "Training: epoch 1 of 2, 61,500 of 320,000 records; at this speed, all epochs take",
        "Progress 19.2 %",
        "Speed 1,211",
        "Training logloss 0.4421",
        "Validation AUC 0.7712",
        "Workers 2 of 3",
        "Checkpoint 7 at step 310",
        "worker-0 running 603 records/s 812 MB",
        "worker 2 was killed (signal 9): 3 leased tasks are given to others 512 records repeated",
        "24,064 records repeated, 3.4 s lost",
        "items: clicked_items, item_id 4.31 MB 33 k",
        "ps-0 32 100,704",
        "Up to date by itself",
    ):
        assert expected in text, expected


def test_live_page_lets_only_its_own_script_run():
    page = Page(render_live(live_data()))
    (script,) = page.scripts
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in LIVE_POLICY
    assert "default-src 'none'" in LIVE_POLICY
    assert "unsafe-eval" not in LIVE_POLICY
    assert not [name for name in page.attributes if name.startswith("on")]
    assert not re.search(r"https?://|@import|url\(", render_live(live_data()))


def test_hostile_names_are_text():
    job = live_data().job
    member = replace(job.members[1], state=HOSTILE, last_end=MemberEnd(HOSTILE))
    hostile = replace(
        job,
        reason=HOSTILE,
        members=(job.members[0], member),
        events=(JobEvent(1.0, HOSTILE, HOSTILE, 1.0),),
        dropped_tasks=(HOSTILE,),
        master_errors=MasterErrors(1, HOSTILE),
        tables=(replace(job.tables[0], name=HOSTILE, features=(HOSTILE,)),),
    )
    data = live_data(job=hostile, name=HOSTILE, run_folder=HOSTILE, warnings=(HOSTILE,))
    html = render_live(data)
    page = Page(html)
    assert "img" not in page.tags
    assert len(page.scripts) == 1
    assert "\x00" not in html
    assert "\u202e" not in html
    assert "{{ 7*7 }}" in page.text


def test_live_page_says_what_stands_still():
    job = a_job(state="training", answering=False, reason="waiting for storage: disk is full")
    text = Page(render_live(live_data(job=job))).text
    assert "Waiting for storage: disk is full." in text
    assert "No master answers: what is shown is what its ledger held last." in text


def test_a_page_that_is_over_asks_no_more():
    html = render_live(live_data(is_over=True))
    assert 'data-over="yes"' in html
    assert "Nothing changes here any more" in html
    assert 'data-over="no"' in render_live(live_data())


def test_replicas_are_shown_by_their_worlds():
    members = a_job().members
    event = JobEvent(1.0, "parameter server 0 was not heard for 5 s", "it is started again", None)
    data = live_data(
        job=None,
        worlds=WORLDS,
        replicas=members,
        replica_events=(event,),
        state="running: training",
    )
    text = Page(render_live(data)).text
    assert "Parameter server 0 was not heard for 5 s: it is started again" in text
    assert all(one.name in text for one in members)
    assert "Running: training, 2 of 2 epochs done." in text
    assert "Replicas in the newest world 2 world 3" in text
    assert "Time that changes took 2.6 s" in text
    assert "Steps repeated 1" in text
    assert "2 1 1,048 140 400 ms 1" in text


def test_a_run_that_has_only_begun_has_a_page():
    data = live_data(job=None, history=(), state="running: ingest", epochs=None)
    assert "Running: ingest." in Page(render_live(data)).text


@pytest.mark.parametrize("num_workers", [1, 1000])
def test_many_workers_fit_the_page(num_workers):
    job = live_data().job
    worker = next(one for one in job.members if one.role == "worker")
    workers = [replace(worker, index=index) for index in range(num_workers)]
    workers[-1] = replace(workers[-1], state="silent")
    html = render_live(live_data(job=replace(job, members=tuple(workers))))
    assert len(html) < 200_000
    assert f"worker-{num_workers - 1}</th>" in html
    more = f"And {num_workers - 64:,} more workers." in Page(html).text
    assert more == (num_workers > 64)
