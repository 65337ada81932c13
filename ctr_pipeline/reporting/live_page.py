"""The top of the page of a run that goes on: what it does, in a sentence and a few cards."""

from datetime import UTC
from typing import Any

from ctr_pipeline.distributed.master.status import OVER, JobView
from ctr_pipeline.reporting.charts import improvement_bar
from ctr_pipeline.reporting.data import LiveData
from ctr_pipeline.reporting.findings import Finding
from ctr_pipeline.reporting.formats import (
    count_text,
    duration_text,
    metric_text,
    percent_text,
    short_count,
)
from ctr_pipeline.reporting.headline import Card


def live_page(data: LiveData) -> dict[str, Any]:
    """What the template of the page names, apart from the sections."""
    job = data.job
    cards = _learning_cards(data) if job is None else _job_cards(job)
    return {
        "data": data,
        "title": data.name,
        "page_kind": data.state,
        "kicker": f"{data.run_folder} · {data.created.astimezone(UTC):%d %B %Y, %H:%M:%S} UTC",
        "summary": _summary(data) if job is None else _job_summary(job),
        "cards": cards,
        "findings": [Finding("look", text) for text in (*data.warnings, *_job_warnings(job))],
    }


def _summary(data: LiveData) -> str:
    text = _sentence(data.state)
    if data.history and data.epochs:
        text += f", {len(data.history)} of {data.epochs} epochs done"
    return f"{text}."


def _job_summary(job: JobView) -> str:
    text = f"{_sentence(job.state)}: epoch {job.epoch + 1} of {job.epochs}"
    done = job.records.trained + job.records.dropped
    text += f", {count_text(done)} of {count_text(job.records.total)} records"
    left = job.records.total - done
    if job.state == "training" and job.samples_per_second > 0 and left > 0:
        seconds = duration_text(left / job.samples_per_second)
        text += f"; at this speed, all epochs take {seconds} more"
    return f"{text}."


def _sentence(state: str) -> str:
    return state[:1].upper() + state[1:]


def _job_warnings(job: JobView | None) -> list[str]:
    if job is None:
        return []
    found = []
    if job.reason:
        found.append(f"{_sentence(job.reason)}.")
    if not job.answering and job.state not in OVER:
        found.append("No master answers: what is shown is what its ledger held last.")
    if job.master_errors.count:
        found.append(
            f"The master went on after {count_text(job.master_errors.count)} errors, the last in "
            f"{job.master_errors.last}."
        )
    found += [f"Given up: {name}." for name in job.dropped_tasks[:5]]
    return found


def _job_cards(job: JobView) -> tuple[Card, ...]:
    done = (job.records.trained + job.records.dropped) / max(1, job.records.total)
    wanted = [one for one in job.members if one.role == "worker" and one.state != "left"]
    running = sum(one.state == "running" for one in wanted)
    servers = [one for one in job.members if one.role == "ps" and one.state != "left"]
    up = sum(one.state == "running" for one in servers)
    is_short = running < job.workers_wanted and job.state not in OVER and job.answering
    return (
        Card(
            "Progress",
            percent_text(done),
            f"epoch {job.epoch + 1} of {job.epochs}, step {short_count(job.step)}",
            "neutral",
            improvement_bar(done, label="share of all records of all epochs"),
        ),
        Card(
            "Speed",
            short_count(job.samples_per_second) if job.answering else "–",
            "records a second",
        ),
        Card(
            "Training logloss", metric_text(job.train_logloss), f"of epoch {job.epoch + 1} so far"
        ),
        Card(
            "Validation AUC",
            metric_text(job.auc),
            "not yet measured" if job.best_epoch is None else f"best epoch {job.best_epoch + 1}",
            "neutral" if job.auc is None else "good" if job.auc > 0.5 else "look",
        ),
        Card(
            "Workers",
            f"{running} of {job.workers_wanted}",
            f"and {up} of {len(servers)} parameter servers",
            "look" if is_short else "neutral",
        ),
        Card("Checkpoint", *_checkpoint(job)),
    )


def _checkpoint(job: JobView) -> tuple[str, str]:
    found = job.checkpoint
    if found is None:
        return "–", "none yet"
    step = f"at step {short_count(found.step)}"
    return str(found.number), f"{step}, {duration_text(found.age_seconds)} ago"


def _learning_cards(data: LiveData) -> tuple[Card, ...]:
    if not data.history:
        return ()
    last = data.history[-1]
    done = len(data.history) / max(1, data.epochs or len(data.history))
    return (
        Card(
            "Epochs",
            f"{len(data.history)} of {data.epochs}",
            f"step {short_count(last.step)}",
            "neutral",
            improvement_bar(done, label="share of all epochs"),
        ),
        Card("Training logloss", metric_text(last.train_logloss), f"of epoch {last.epoch + 1}"),
        Card("Validation logloss", metric_text(last.valid_logloss), f"of epoch {last.epoch + 1}"),
        Card(
            "Validation AUC",
            metric_text(last.valid_auc),
            f"of epoch {last.epoch + 1}",
            "good" if last.valid_auc > 0.5 else "look",
        ),
        Card("Speed", short_count(last.num_rows / max(last.seconds, 1e-9)), "records a second"),
    )
