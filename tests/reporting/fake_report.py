"""Made-up but lifelike report data, for tests and for looking at the page."""

from dataclasses import replace
from datetime import UTC, datetime

import numpy as np

from ctr_pipeline.dataset.bad_rows import BadRow, BadRows
from ctr_pipeline.dataset.ingested import SplitRows
from ctr_pipeline.distributed.coordination.job.status import MemberStatus
from ctr_pipeline.distributed.coordination.members import MemberEnd
from ctr_pipeline.distributed.coordination.messages import MemberStats, PartitionLoads
from ctr_pipeline.distributed.master.status import (
    NO_ERRORS,
    CheckpointStatus,
    JobEvent,
    JobView,
    RecordCounts,
    TableUse,
    price_disruptions,
)
from ctr_pipeline.distributed.master.timeline import JobMoment
from ctr_pipeline.evaluation.importance import ImportanceRow
from ctr_pipeline.evaluation.metrics import evaluate_predictions
from ctr_pipeline.reporting.data import (
    LiveData,
    PlanRow,
    ReportData,
)
from ctr_pipeline.specs.columns import ColumnType
from ctr_pipeline.specs.parity import ParityProof
from ctr_pipeline.statistics import (
    ColumnDrift,
    ColumnStatistics,
    DriftCell,
    HistogramBin,
    LabelInformation,
    Moments,
    RowsDrift,
    Statistics,
    ValueCount,
    VocabularyStatistics,
)
from ctr_pipeline.training.history import EpochRecord, WorldRecord
from ctr_pipeline.training.profile import Stage, StageTime, TrainingProfile

TRAINING_PROFILE = TrainingProfile(
    num_steps=1875,
    num_rows=480_000,
    processor_seconds=223.9,
    cores=2,
    stages=tuple(
        StageTime(stage, seconds, 1875)
        for stage, seconds in (
            (Stage.TENSORFLOW, 61.2),
            (Stage.SPARSE_UPDATE, 18.3),
            (Stage.AWAIT_BATCH, 14.1),
            (Stage.GATHER, 9.4),
            (Stage.VALIDATION, 8.9),
            (Stage.COMPILE, 4.4),
            (Stage.CHECKPOINT, 2.2),
            (Stage.DENSE_UPDATE, 1.2),
            (Stage.OTHER, 0.7),
            (Stage.LOCATE, 41.0),
            (Stage.UNIQUE, 20.2),
            (Stage.READ, 9.9),
        )
    ),
)

NUM_ROWS = 160_000
LABEL_RATE = 0.2567

JOB_BEGAN = 1_773_480_000.0


def a_member(role, index, *, restarts=0, state="finished", loads=None, **stats):
    return MemberStatus(
        role=role,
        index=index,
        pid=4000 + index,
        host="here",
        address="" if role == "worker" else "127.0.0.1:7000",
        metrics_address="",
        state=state,
        restarts=restarts,
        last_end=MemberEnd("parameter server 0 was killed (signal 9)", -9) if restarts else None,
        stats=MemberStats(loads=loads, **stats),
    )


def partition_loads(first, num_tables=5):
    partitions = tuple(range(first, 64, 2))
    return PartitionLoads(
        partitions=partitions,
        rows=tuple(2_000 + 37 * one for one in partitions),
        row_bytes=tuple((2_000 + 37 * one) * 137 for one in partitions),
        pulled_keys=tuple(90_000 + (13 * one) % 29 * 2_000 for one in partitions),
        pushed_keys=tuple(80_000 + (13 * one) % 29 * 1_900 for one in partitions),
        table_rows=tuple(30_000 // (1 + 3 * table) for table in range(num_tables)),
        bytes_a_row=137,
    )


JOB_EVENTS = (
    JobEvent(
        JOB_BEGAN + 95,
        "worker 2 was killed (signal 9)",
        "3 leased tasks are given to others",
        None,
        is_disruption=True,
        repeated=0,
    ),
    JobEvent(
        JOB_BEGAN + 200,
        "parameter server 0 was killed (signal 9)",
        "the job goes back to checkpoint 3",
        None,
        is_disruption=True,
        repeated=512,
    ),
    JobEvent(
        JOB_BEGAN + 203.4,
        "the job has recovered",
        "24,064 records are trained again",
        3.4,
        repeated=24_576,
    ),
    JobEvent(
        JOB_BEGAN + 260,
        "another number of workers is asked for",
        "2, 1 to 4",
        None,
        repeated=24_576,
    ),
)


def a_job(**changes):
    """A job that has finished, unless it is said otherwise."""
    timeline = tuple(
        JobMoment(
            time=JOB_BEGAN + 5.0 * place,
            workers=3 if 3 < place < 19 or 22 < place < 52 else 2,
            servers=1 if 40 <= place < 41 else 2,
            trained=1_000 * place,
            samples_per_second=0.0 if place == 40 else 900.0 + 310.0 * ((place * 7) % 5) / 5,
        )
        for place in range(66)
    )
    tables = tuple(
        TableUse(name, features, num_ids, rows, rows * 137)
        for name, features, num_ids, rows in (
            ("C1", ("C1",), 1_400, 1_390),
            ("C3", ("C3",), 90_000, 61_204),
            ("C4", ("C4",), 70_000, 44_871),
            ("items", ("clicked_items", "item_id"), 120_000, 33_000),
            ("C20", ("C20",), 4, 4),
        )
    )
    job = JobView(
        job="criteo-deepfm",
        state="finished",
        reason="",
        traceback="",
        answering=True,
        generation=2,
        epoch=1,
        epochs=2,
        step=320,
        tasks_done=40,
        tasks_total=40,
        records=RecordCounts(total=320_000, trained=320_000, repeated=24_576, dropped=0),
        samples_per_second=1_211.0,
        train_logloss=0.4421,
        checkpoint=CheckpointStatus(number=7, step=310, age_seconds=4.0, best=6),
        auc=0.7712,
        history=(),
        best_epoch=0,
        workers_wanted=3,
        members=(
            a_member("master", 0, rss_bytes=86 << 20, cpu_seconds=2.1),
            a_member(
                "ps",
                0,
                restarts=1,
                rss_bytes=171 << 20,
                cpu_seconds=9.7,
                rows_held=142_060,
                bytes_received=700 << 20,
                bytes_sent=511 << 20,
                loads=partition_loads(0),
            ),
            a_member(
                "ps",
                1,
                rss_bytes=160 << 20,
                cpu_seconds=9.1,
                rows_held=131_911,
                bytes_received=690 << 20,
                bytes_sent=500 << 20,
                loads=partition_loads(1),
            ),
            a_member(
                "worker",
                0,
                rss_bytes=812 << 20,
                cpu_seconds=31.0,
                samples_per_second=603.0,
                bytes_received=600 << 20,
                bytes_sent=607 << 20,
            ),
            a_member(
                "worker",
                1,
                rss_bytes=809 << 20,
                cpu_seconds=30.2,
                samples_per_second=608.0,
                bytes_received=600 << 20,
                bytes_sent=607 << 20,
            ),
            a_member("worker", 2, state="left"),
        ),
        dropped_tasks=(),
        refused_reports=0,
        events=JOB_EVENTS,
        master_errors=NO_ERRORS,
        final_metrics=(),
        timeline=timeline,
        disruptions=price_disruptions(JOB_EVENTS, 24_576),
        tables=tables,
    )
    return replace(job, **changes)


JOB = a_job()

WORLDS = (
    WorldRecord(version=1, size=2, step_rows=2_048, step=0, seconds=3.1, steps_repeated=0),
    WorldRecord(version=2, size=1, step_rows=1_048, step=140, seconds=0.4, steps_repeated=1),
    WorldRecord(version=3, size=2, step_rows=2_048, step=188, seconds=2.2, steps_repeated=0),
)


def live_data(**changes):
    """A run of several processes in the middle of its training."""
    job = a_job(
        state="training",
        tasks_done=12,
        members=tuple(
            replace(one, state="running" if one.state == "finished" else one.state)
            for one in JOB.members
        ),
        records=RecordCounts(total=320_000, trained=61_500, repeated=24_576, dropped=0),
        epoch=0,
    )
    values = {
        "name": "criteo-deepfm",
        "model": "",
        "created": datetime(2026, 3, 14, 9, 26, 5, tzinfo=UTC),
        "run_folder": "runs/criteo-deepfm",
        "config_yaml": "",
        "history": tuple(history()[:2]),
        "job": job,
        "state": "training",
        "epochs": 2,
    }
    return LiveData(**(values | changes))


CONFIG = """\
name: criteo-deepfm
data:
  train: data/criteo/train.txt          # file, glob or list
  columns: [label, I1..I13, C1..C26]
  label: label
  split: {valid: 0.1, test: 0.1, by: order}
features:
  - {columns: I1..I13, number: [log, standardize], id: {bucketize: {quantiles: 30}}}
  - {columns: C1..C26, id: {vocabulary: {min_count: 2}}}
model: {name: deepfm, embedding_dim: 16, hidden_units: [256, 128, 64]}
train: {epochs: 10, batch_size: 1024, early_stopping: {metric: logloss, tolerance: 0.0015}}
runtime: {mode: local}
output: runs/criteo-deepfm
"""


def evaluation(seed, *, num_rows=20_000, noise=1.0, groups=True):
    random = np.random.default_rng(seed)
    truth = random.normal(-1.3, 1.1, num_rows)
    labels = (random.random(num_rows) < 1 / (1 + np.exp(-truth))).astype(np.uint8)
    logits = (0.97 * truth - 0.07 + random.normal(0, 0.3 * noise, num_rows)).astype(np.float32)
    return evaluate_predictions(
        labels,
        logits,
        groups=random.integers(0, 3000, num_rows) if groups else None,
        baseline_rate=LABEL_RATE,
    )


def number_column(name, random, *, sensitive_marker=None):
    values = np.round(random.lognormal(2, 1.2, 20_000), 0)
    top = float(np.quantile(values, 0.99))
    edges = np.linspace(0, top, 25)
    counts = np.histogram(values, edges)[0] * 7
    missing = int(random.integers(0, NUM_ROWS // 2))
    bins = tuple(
        HistogramBin(
            left=float(a),
            right=float(b),
            count=int(n),
            label_rate=float(np.clip(0.15 + 0.2 * i / 24 + random.normal(0, 0.02), 0, 1)),
        )
        for i, (a, b, n) in enumerate(zip(edges[:-1], edges[1:], counts, strict=True))
    )
    return ColumnStatistics(
        column=name,
        column_type=ColumnType.NUMBER,
        count=NUM_ROWS,
        num_missing=missing,
        num_infinite=3,
        num_distinct=int(random.integers(20, 9000)),
        moments=Moments(
            count=NUM_ROWS - missing,
            mean=float(values.mean()) if sensitive_marker is None else sensitive_marker,
            standard_deviation=float(values.std()),
            minimum=-2.0,
            maximum=float(values.max()),
        ),
        summary={"skew": 4.2},
        quantiles={str(q): float(np.quantile(values, q)) for q in (0.05, 0.25, 0.5, 0.75, 0.95)},
        missing_label_rate=0.21,
        histogram=bins,
    )


def text_column(name, random, values=None):
    size = int(random.integers(4, 60_000))
    weights = 1 / np.arange(1, min(size, 20) + 1) ** float(random.uniform(0.5, 1.6))
    weights = weights / weights.sum() * float(random.uniform(0.3, 0.85))
    texts = values or [f"{random.integers(2**32):08x}" for _ in weights]
    return ColumnStatistics(
        column=name,
        column_type=ColumnType.TEXT,
        count=NUM_ROWS,
        num_missing=int(NUM_ROWS * random.uniform(0, 0.12)),
        num_distinct=max(size, len(texts)),
        missing_label_rate=0.31,
        top_values=tuple(
            ValueCount(
                value=text,
                count=int(NUM_ROWS * weight),
                label_rate=float(random.uniform(0.08, 0.5)),
            )
            for text, weight in zip(texts, weights, strict=False)
        ),
    )


def information(rank):
    return LabelInformation(
        information_value=0.9 * 0.8**rank,
        mutual_information=0.08 * 0.8**rank,
        smoothing=16.0 if rank < 30 else None,
        num_groups=20,
    )


def column_drift(column, psi, random, *, noise=0.002, moved=0.3):
    """A column of twenty intervals or top values; the first cell has moved."""
    old = (random.dirichlet(np.ones(20)) * NUM_ROWS).astype(int).tolist()
    new = [int(count * (1 - moved) / 8) for count in old]
    new[0] += int(NUM_ROWS * moved / 8)
    is_text = column.column_type is ColumnType.TEXT
    cells = [
        DriftCell(kind="value", value=f"value {n}", old_count=a, new_count=b)
        if is_text
        else DriftCell(
            kind="interval",
            left=n if n else None,
            right=n + 1 if n < 19 else None,
            old_count=a,
            new_count=b,
        )
        for n, (a, b) in enumerate(zip(old, new, strict=True))
    ]
    missing = DriftCell(kind="missing", old_count=column.num_missing, new_count=900)
    rest = DriftCell(kind="rest", old_count=5000, new_count=700)
    return ColumnDrift(
        column=column.column,
        column_type=column.column_type,
        psi=psi,
        noise=noise,
        old_missing_rate=column.num_missing / NUM_ROWS,
        new_missing_rate=0.05,
        unseen_rate=0.31 if is_text else None,
        expected_unseen_rate=0.28 if is_text else None,
        cells=(*cells, *([rest] if is_text else []), missing),
    )


def drift_of(columns, random, *, worst=0.42):
    """The drift of all columns, ever smaller; the last is within sampling error."""
    named = list(columns.values())
    return RowsDrift(
        num_rows=20_000,
        columns={
            column.column: column_drift(column, worst * 0.7**rank, random)
            for rank, column in enumerate(named)
        },
    )


def history(num_epochs=4):
    return tuple(
        EpochRecord(
            epoch=epoch,
            step=156 * (epoch + 1),
            train_logloss=0.445 + 0.12 * np.exp(-1.4 * (epoch + 1)),
            valid_logloss=0.4712 + 0.02 * np.exp(-1.6 * (epoch + 1)) + 0.0015 * max(0, epoch - 2),
            valid_auc=0.765 - 0.02 * np.exp(-1.4 * (epoch + 1)) - 0.001 * max(0, epoch - 2),
            valid_calibration=1.01,
            learning_rate_factor=1.0,
            num_rows=160_000,
            seconds=2.3,
        )
        for epoch in range(num_epochs)
    )


def parity_proof(num_rows, difference, *, tolerance=1e-5):
    return ParityProof(
        num_rows=num_rows,
        num_edge_rows=100,
        max_difference={"serving_default": difference, "serving_strings": difference / 2},
        tolerance=tolerance,
        num_not_a_number=0,
        versions={},
    )


def bad_row(reason, row, column, value, *, file="data/criteo/train.txt"):
    return BadRow(file=file, row=row, column=column, reason=reason, value=value)


def lifelike_report(num_numbers=13, num_texts=26, **changes):
    """A report with every section filled; `changes` replace fields of it."""
    random = np.random.default_rng(7)
    numbers = [f"I{i}" for i in range(1, num_numbers + 1)]
    texts = [f"C{i}" for i in range(1, num_texts + 1)]
    columns = {name: number_column(name, random) for name in numbers}
    columns |= {name: text_column(name, random) for name in texts}
    columns = {
        name: column.model_copy(update={"label_information": information(rank)})
        for rank, (name, column) in enumerate(columns.items())
    }
    plan = [
        PlanRow(
            feature=name,
            column_type="number",
            number="log → standardize",
            id="log → bucketize(quantiles=30)",
            statistics=("mean of log", "standard deviation of log", "30-quantiles"),
            num_ids=int(random.integers(8, 31)),
            dimension=16,
            max_bytes=30 * 17 * 4,
            reason="config, entry 1: I1..I13",
        )
        for name in numbers
    ]
    plan += [
        PlanRow(
            feature=name,
            column_type="text",
            id="vocabulary(min_count=2)",
            statistics=("vocabulary",),
            vocabulary_size=columns[name].num_distinct,
            num_ids=columns[name].num_distinct + 2,
            dimension=16,
            max_bytes=(columns[name].num_distinct + 2) * 17 * 4,
            reason="automatic: text with many distinct values, so frequent ones get their own id",
            sensitive=name == "C9",
        )
        for name in texts
    ]
    fields = {
        "name": "criteo-deepfm",
        "model": "deepfm",
        "created": datetime(2026, 3, 14, 9, 26, tzinfo=UTC),
        "run_folder": "runs/criteo-deepfm",
        "config_yaml": CONFIG,
        "test": evaluation(1),
        "valid": evaluation(2, noise=0.8),
        "splits": {
            "train": SplitRows(
                files=(),
                part_rows=(),
                num_rows=NUM_ROWS,
                num_positive=round(NUM_ROWS * LABEL_RATE),
            ),
            "valid": SplitRows(files=(), part_rows=(), num_rows=20_000, num_positive=5_024),
            "test": SplitRows(files=(), part_rows=(), num_rows=20_000, num_positive=5_066),
        },
        "history": history(),
        "learning_rate": 0.001,
        "best_step": 468,
        "statistics": Statistics(
            fingerprint="0",
            num_rows=NUM_ROWS,
            label_rate=LABEL_RATE,
            columns=columns,
            vocabularies={
                name: VocabularyStatistics(
                    column=name,
                    min_count=2,
                    max_size=None,
                    file=f"vocabularies/{name}.parquet",
                    size=100,
                    num_excluded_values=4312,
                    num_excluded_rows=4312,
                )
                for name in texts
            },
            drift={
                "valid": drift_of(columns, random, worst=0.12),
                "test": drift_of(columns, random),
            },
            notes=("Quantiles are exact.",),
        ),
        "plan": tuple(plan),
        "left_out": {
            "session_id": "as many distinct values as rows",
            "constant": "one value only",
        },
        "bad_rows": BadRows(
            total=15,
            by_reason={"wrong number of columns": 12, "not a number": 3},
            examples=(
                bad_row("wrong number of columns", 184, None, "1\t2\tsecret-row"),
                bad_row("not a number", 9120, "I7", "twelve"),
            ),
        ),
        "training_profile": TRAINING_PROFILE,
        "timings": {
            "check": 0.04,
            "read": 1.2,
            "statistics": 1.9,
            "transform": 0.8,
            "train": 14.6,
            "evaluate": 0.9,
            "export": 3.1,
            "report": 0.2,
        },
        "environment": {
            "ctrpipe": "0.1.0",
            "Python": "3.11.9",
            "TensorFlow": "2.21.0",
            "Keras": "3.15.0",
            "CPU": "Intel Xeon, 2 cores",
            "Memory": "8 GB, peak 1.9 GB",
            "System": "Linux 6.1",
        },
        "importance": tuple(
            ImportanceRow(
                feature=name,
                auc_drop=float(0.03 * 0.86**rank - 0.0008),
                logloss_rise=float(0.02 * 0.86**rank - 0.0005),
                auc_drop_std=0.0007,
                logloss_rise_std=0.0005,
                repeats=3,
            )
            for rank, name in enumerate(random.permutation([*numbers, *texts]).tolist())
        ),
        "importance_num_rows": 20_000,
        "parity": parity_proof(1000, 3.1e-7),
        "num_dense_parameters": 152_833,
        "num_embedding_rows": 284_113,
        "embedding_bytes": 284_113 * 240,
        "export_path": "runs/criteo-deepfm/export/1",
        "job": JOB,
    }
    return ReportData(**(fields | changes))
