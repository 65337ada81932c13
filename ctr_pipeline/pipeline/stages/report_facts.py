"""The data of a run's report, saved beside it, from which `ctrpipe report` renders the page.

A run that is not finished has none; the page then shows what is in its folder.
"""

import itertools
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from ctr_pipeline import durable
from ctr_pipeline.config.loader import load_config
from ctr_pipeline.config.models import Config
from ctr_pipeline.dataset.bad_rows import BadRows
from ctr_pipeline.dataset.ingested import load_ingested
from ctr_pipeline.errors import RunFolderError
from ctr_pipeline.pipeline.feature_file import load_features
from ctr_pipeline.pipeline.run_folder import RunFolder
from ctr_pipeline.pipeline.sessions import FINISHED, RunSession, load_sessions, total_seconds
from ctr_pipeline.pipeline.stages.plan_view import describe_plan
from ctr_pipeline.preprocessing.plan import load_plan
from ctr_pipeline.reporting import data as page
from ctr_pipeline.reporting.render import render_report
from ctr_pipeline.statistics import Statistics, load_statistics
from ctr_pipeline.training.history import load_history

_MISSING = "test metrics, importance, the export and its proof"


def rewrite_report(run: RunFolder) -> tuple[Path, str]:
    """Renders `report.html` again from the run folder, without training and without the lock.

    Returns:
        The page, and what is missing on it as a sentence; empty for a finished run.

    Raises:
        RunFolderError: There is no run that was trained, or a file of it is damaged.
        StatisticsError: The statistics are damaged.
    """
    facts, missing = _load_facts(run), ""
    if facts is None:
        facts, missing = _collect_unfinished(run)
    durable.write_text(run.report, render_report(facts))
    return run.report, missing


def save_facts(run: RunFolder, shown: page.ReportData) -> None:
    """Saves the data of a page but its statistics, which have a file of their own."""
    durable.write_text(run.report_facts, shown.model_dump_json(exclude={"statistics"}) + "\n")


def _load_facts(run: RunFolder) -> page.ReportData | None:
    """Loads the data of a finished run's page; None if the run is not finished."""
    try:
        facts = page.ReportData.model_validate_json(run.report_facts.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise RunFolderError(
            "is damaged, or is not what a run wrote",
            place=str(run.report_facts),
            remedy="'ctrpipe export RUN' makes it again, with the export",
        ) from error
    update = {"statistics": load_statistics(run.statistics), "run_folder": str(run.path)}
    return facts.model_copy(update=update)


def _collect_unfinished(run: RunFolder) -> tuple[page.ReportData, str]:
    if not run.config.is_file():
        raise RunFolderError(
            "holds no run that got as far as training, so there is nothing to report",
            place=str(run.path),
            remedy="'ctrpipe run CONFIG --resume' goes on with one that was stopped before",
        )
    loaded = load_config(run.config)
    config, ingested = loaded.config, load_ingested(run.ingested)
    sessions = load_sessions(run.sessions)
    statistics = load_statistics(run.statistics) if run.statistics.exists() else None
    trained = run.trained_folders()
    missing = f"This run is not finished{_format_end(sessions)}: {_MISSING} are missing."
    return page.ReportData(
        name=config.name,
        model=config.model.name,
        created=datetime.now(UTC),
        run_folder=str(run.path),
        config_yaml=run.config.read_text(encoding="utf-8"),
        splits={} if ingested is None else ingested.splits,
        history=tuple(load_history(trained[0].history)) if trained else (),
        learning_rate=config.train.optimizer.learning_rate,
        statistics=statistics,
        plan=_load_plan(run, config, statistics),
        bad_rows=BadRows() if ingested is None else ingested.bad_rows,
        timings=total_seconds(sessions),
        is_finished=False,
        notes=(missing, *session_notes(sessions)),
    ), missing


def _format_end(sessions: Sequence[RunSession]) -> str:
    """Where a run ended, as the end of a sentence "This run is not finished"."""
    if not sessions:
        return ""
    last = sessions[-1]
    if last.ended == FINISHED:
        return " (it was trained, and no more)"
    at = f" in the stage '{last.stage}'" if last.stage else ""
    if last.ended is None:
        return f" (last seen{at} at {last.seen:%Y-%m-%d %H:%M:%S} UTC)"
    return f" ({last.ended}{at} at {last.seen:%Y-%m-%d %H:%M:%S} UTC)"


def _load_plan(
    run: RunFolder, config: Config, statistics: Statistics | None
) -> tuple[page.PlanRow, ...]:
    if not (run.features.exists() and run.preprocessing.exists()):
        return ()
    features, plan = load_features(run.features), load_plan(run.preprocessing)
    return describe_plan(config, features, plan, statistics)


def session_notes(sessions: Sequence[RunSession]) -> tuple[str, ...]:
    """How a resumed run was: when it went on, how each session before ended, and what changed."""
    changes = tuple(f"{change.sentence}." for one in sessions for change in one.changes)
    if len(sessions) < 2:
        return changes
    resumed = [
        f"at {later.started:%Y-%m-%d %H:%M:%S} UTC, after one that {_past(earlier)}"
        for earlier, later in itertools.pairwise(sessions)
    ]
    return (
        f"The run was worked on in {len(sessions)} sessions, and its times are those of all of "
        f"them. It was resumed {'; '.join(resumed)}.",
        *changes,
    )


def _past(session: RunSession) -> str:
    at = f" in the stage '{session.stage}'" if session.stage else ""
    if session.ended == FINISHED:
        return f"ended with 'ctrpipe {session.command}'"
    if session.ended is None:
        return f"was killed{at}"
    return f"was stopped{at}" if session.ended == "stopped" else f"failed{at}"
