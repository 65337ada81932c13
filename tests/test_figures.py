"""The figures of the README are those that the benchmarks wrote."""

import json
import re
from statistics import mean

import pytest

from tests.paper_snippets import ROOT, text_of


def results(name):
    path = ROOT / "benchmarks" / "results" / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8"))["results"]


def figures_of_quality():
    ours = results("criteo_quality")
    yield ours["deepfm"]["auc"]["mean"]
    yield ours["logistic regression"]["auc"]["mean"]
    peers = {
        **results("criteo_peers_deepfm")["lines"],
        **results("criteo_peers_deepfm_fuxictr")["lines"],
    }
    yield max(line["auc"]["mean"] for name, line in peers.items() if name != "ours deepfm")


def faster_than(name, peer):
    found = results(name)
    cases = found.get("cases") or [case for run in found["runs"] for case in run["cases"]]
    (case,) = [case for case in cases if case["embedding_rows"] == 2_600_000]
    return case["ours_divided_by"][peer]["mean"]


def figures_of_training():
    yield results("train_speed")["cases"][0]["samples_per_second"]["ours"]["mean"] / 1000
    yield 2.6  # million embedding rows, which `faster_than` selects
    yield faster_than("train_speed", "keras")
    yield faster_than("train_speed_peers", "fuxictr")
    yield faster_than("train_speed_amd", "keras")
    yield faster_than("train_speed_peers_amd", "fuxictr")


def figures_of_the_whole_job():
    jobs = results("whole_job_beside")["jobs"]
    yield mean(job["wall_seconds"] for job in jobs["ours"])
    yield mean(job["peak_memory_bytes"] for job in jobs["ours"]) / 1e9
    pairs = zip(jobs["fuxictr"], jobs["ours"], strict=True)
    yield mean(theirs["wall_seconds"] / ours["wall_seconds"] for theirs, ours in pairs)


def figures_of_features():
    sides = results("feature_speed_fuxictr")["fuxictr"]["csv"]
    pairs = zip(sides["fuxictr"], sides["ours"], strict=True)
    yield mean(theirs["seconds"] / ours["seconds"] for theirs, ours in pairs)


def figures_of_scoring():
    names = ("serve_speed", "serve_speed_2m_amx", "serve_speed_amd", "serve_speed_amx")
    ratios = [results(name)["files"]["ratio"]["mean"] for name in names]
    yield from (min(ratios), max(ratios))


@pytest.mark.parametrize(
    ("row", "figures"),
    [
        ("DeepFM on real Criteo rows", figures_of_quality),
        ("Training DeepFM", figures_of_training),
        ("Whole job", figures_of_the_whole_job),
        ("Raw rows to ids", figures_of_features),
        ("`ctrpipe predict`", figures_of_scoring),
    ],
)
def test_a_row_of_the_table_has_the_measured_figures(row, figures):
    (cells,) = re.findall(rf"^\| {re.escape(row)}(.*) \|.*\|$", text_of("README.md"), re.MULTILINE)
    written = re.findall(r"\d+(?:\.\d+)?", cells)
    missing = []
    for figure in figures():
        texts = {f"{figure:.{digits}f}" for digits in (0, 1, 4)}
        if not texts & set(written):
            missing.append((figure, written))
    assert missing == []


def test_no_fault_lost_a_record():
    outcomes = [one for one in results("chaos")["outcomes"] if one["fault"] != "undisturbed"]
    kinds = {one["fault"] for one in outcomes}
    assert f"{len(kinds)} kinds, three seeds each" in text_of("README.md")
    for one in outcomes:
        assert one["problems"] == []
        # A model that always fails ends its run; what was trained is kept.
        if one["fault"] != "worker_crash_loop":
            assert one["trained"] == one["expected"]
    assert len(outcomes) == 3 * len(kinds)
