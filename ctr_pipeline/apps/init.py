"""`ctrpipe init`: writes a commented config, ready to run, from the head of the data."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel

from ctr_pipeline import durable
from ctr_pipeline.apps.check import HeadDecisions, decide_from_head
from ctr_pipeline.apps.outputs import require_output
from ctr_pipeline.apps.tables import inspect_table, named_by_options, said_keys, table_config
from ctr_pipeline.config import config_from_mapping
from ctr_pipeline.config.label_values import opposite_of
from ctr_pipeline.config.loader import LoadedConfig
from ctr_pipeline.config.models import TrainConfig
from ctr_pipeline.config.yaml_source import flow_yaml
from ctr_pipeline.dataset.ingest import check_division
from ctr_pipeline.dataset.inspection import format_of_address, inspect_source
from ctr_pipeline.dataset.near_numbers import find_near_numbers
from ctr_pipeline.dataset.source import Source
from ctr_pipeline.dataset.times import find_unordered_time
from ctr_pipeline.datetime_formats import EPOCH_DIVISORS, ISO
from ctr_pipeline.errors import DataError
from ctr_pipeline.features import FeatureSpec
from ctr_pipeline.pipeline.stages.columns import no_feature
from ctr_pipeline.pipeline.stages.labels import choose_label_values, find_label, label_rate_of
from ctr_pipeline.progress import Progress
from ctr_pipeline.specs.columns import ColumnType
from ctr_pipeline.specs.model_kinds import MODELS, DeepFMConfig
from ctr_pipeline.transforms.base import Transform

_SAID = {
    "format": "auto finds it",
    "record": "auto finds it",
    "delimiter": "null finds it",
    "quote": "around values; null: nothing",
    "bad_rows": "fail | skip",
    "max_bad_fraction": "skip no more than this share",
}
"""Comments on keys that stand in a config only if they were given."""
_COMMENT_COLUMN = 60
"""Comments begin here, unless the line is longer."""


@dataclass(frozen=True)
class InitResult:
    """A config that was written.

    Attributes:
        output: The config file.
        label: The label column.
        positive: The value that means label 1.
        label_rate: Share of label 1 in the rows that were read.
        num_columns: Columns of the data.
        num_features: Columns that became features.
        num_rows_seen: Rows that were read, from the head of the data.
        left_out: Columns without a feature, with the reason.
        notes: Notes on columns, a sentence each.
    """

    output: Path
    label: str
    positive: str
    label_rate: float
    num_columns: int
    num_features: int
    num_rows_seen: int
    left_out: tuple[tuple[str, str], ...]
    notes: tuple[str, ...] = ()


def init_config(
    data: str,
    *,
    label: str | None = None,
    positive: str | None = None,
    output: Path,
    columns: Sequence[str] | None = None,
    settings: Sequence[str] = (),
    overwrite: bool = False,
    progress: Progress,
) -> InitResult:
    """Profiles the head of the data and writes a commented config.

    Args:
        data: A file, a glob or the address of a table.
        label: The column to predict; None: `label`, or the only column of 0 and 1.
        positive: The value that means label 1, where the labels do not tell.
        output: The config to write.
        columns: Names of a file without a header; ranges such as I1..I13 are fine.
        settings: More of how it is read, as KEY=VALUE each; the config says the same.
        overwrite: Whether to replace an existing `output`.

    Raises:
        RunFolderError: There is a file at `output` already, or it cannot be written.
        DataError: The data cannot be read, the columns are no names, or the label column or its
            values cannot be found.
    """
    require_output(output, overwrite=overwrite, reads=[data], makes_folder=True)
    progress.log("Reading the first rows")
    with named_by_options():
        given = table_config(data, label, columns, settings)
        source, read_by = inspect_table(given, data, "DATA")
        if label is None:
            label = find_label(source)
        source.require([label], "--label")
        values = choose_label_values(source, label, positive)
    section: dict[str, Any] = {"train": data, "label": label}
    section |= {key: getattr(given, key) for key in said_keys(None, settings)}
    found = {"skip_lines": read_by.skip_lines, "escape": read_by.escape, "quote": read_by.quote}
    section |= {key: value for key, value in found.items() if value != getattr(given, key)}
    if values is not None:
        section |= {"positive": values.positive, "negative": values.negative}
    if columns is not None:
        section["columns"] = list(columns)
    # Most outputs are called `config`; the name of the data says more.
    format = format_of_address(data)
    title = Path(data).name.split(".")[0] if format is None else format.title_of(data)
    slug = re.sub(r"[^A-Za-z0-9_-]+", "-", title).strip("-") or "model"
    if format is not None and not format.rows_have_order:
        section["split"] = {"valid": 0.1, "test": 0.1, "by": "random"}

    def load() -> LoadedConfig:
        return config_from_mapping({"name": slug, "data": section, "output": f"runs/{slug}"})

    with named_by_options():
        label_rate = label_rate_of(source, load().config.data)
        words, notes = _missing_words(source, label)
        if words:
            section["missing_values"] = [*section.get("missing_values", ()), *words]
            source = inspect_source(load().config.data)
        decided = decide_from_head(load(), source)
        if not decided.features:
            raise DataError(
                no_feature(decided.left_out),
                place=data,
                remedy="Give rows with columns that tell something about the label",
            )
        time = _unordered_time(decided) if source.format.rows_have_order else None
        if time is not None:
            name, written = time
            section["split"] = {"valid": 0.1, "test": 0.1, "by": "time", "column": name}
            # Numbers and dates of ISO 8601 are found.
            if written != ISO and written not in EPOCH_DIVISORS:
                section["split"]["time_format"] = written
            notes.append(
                f"the rows are not in the order of '{name}': they are divided by it, so that the "
                "latest ones test (data.split)"
            )
        notes += _divide_both_classes(load, section, decided)
    text = render_config(slug, section, decided)
    with durable.os_errors_explained(output.parent):
        output.parent.mkdir(parents=True, exist_ok=True)
    durable.write_text(output, text)
    return InitResult(
        output=output,
        label=label,
        positive="1" if values is None else values.positive,
        label_rate=label_rate,
        num_columns=len(source.column_names),
        num_features=len(decided.features),
        num_rows_seen=source.head.num_rows,
        left_out=tuple((decision.column, decision.reason) for decision in decided.left_out),
        notes=(*notes, *decided.warnings),
    )


def _divide_both_classes(
    load: Callable[[], LoadedConfig], section: dict[str, Any], decided: HeadDecisions
) -> list[str]:
    """Chooses a division that gives each split rows of both labels; by default in order.

    Returns:
        A note on the choice, or on what is not known yet.

    Raises:
        DataError: There are too few rows, or rows of one label alone.
    """
    source, config = decided.source, load().config
    labels = decided.rows.column(config.data.label).to_numpy()
    label, num_rows, num_clicks = config.data.label, len(labels), int(labels.sum())
    only = next((one for one in (0, 1) if num_clicks == one * num_rows), None)
    place = f"{next(iter(source.opened))}, column '{label}'"
    if not source.head_is_all:
        if only is None:
            return []
        return [f"all {num_rows:,} labels looked at are {only}: a run needs rows of both"]
    if only is not None:
        raise DataError(
            f"all {num_rows:,} labels are {only}; rows of both labels are needed",
            place=place,
            remedy="Name another column to predict, or give rows of both labels",
        )
    try:
        check_division(decided.rows, config.data, source, seed=config.train.seed)
    except DataError:
        section["split"] = {"valid": 0.1, "test": 0.1, "by": "random"}
    else:
        return []
    try:
        check_division(decided.rows, load().config.data, source, seed=config.train.seed)
    except DataError as error:
        raise DataError(
            f"{num_rows:,} rows, {num_clicks:,} of them with label 1, are too few: {error.message}",
            place=place,
            remedy="Give more rows",
        ) from error
    return [
        "rows are divided at random: by their order or time, one part would have one label alone "
        "(data.split)"
    ]


def _unordered_time(decided: HeadDecisions) -> tuple[str, str] | None:
    """The column of times to split by and its format, if rows are not in its order; else None."""
    formats = {
        feature.column: read.format
        for feature in decided.features
        for step in feature.id or ()
        if (read := step.time_read) is not None and read.parts
    }
    found = find_unordered_time(decided.source.head, formats)
    return None if found is None else (found, formats[found])


def _missing_words(source: Source, label: str) -> tuple[list[str], list[str]]:
    """Finds words for `data.missing_values` that make columns of numbers readable as numbers.

    Returns:
        The words, and a note on each column that has them.
    """
    if not source.is_delimited:
        return [], []
    near = find_near_numbers(source.head, source.inferred_types)
    with_words = {name: one for name, one in near.items() if one.words and name != label}
    words = list(dict.fromkeys(word for one in with_words.values() for word in one.words))
    notes = [
        f"'{name}' holds {one.reason}: data.missing_values lists that now"
        for name, one in with_words.items()
    ]
    texts = [
        name
        for name, kind in source.inferred_types.items()
        if kind is ColumnType.TEXT and name not in with_words
    ]
    also = [
        f"'{name}'"
        for name in texts
        if words and pc.any(pc.is_in(source.head.column(name), pa.array(words))).as_py()
    ]
    if also:
        quoted = " and ".join(f"'{word}'" for word in words)
        verb = "means" if len(words) == 1 else "mean"
        notes.append(f"{quoted} {verb} missing in {', '.join(also)} as well")
    return words, notes


def render_config(name: str, data: dict[str, Any], decided: HeadDecisions) -> str:
    """Renders the config as commented YAML."""
    source = decided.source
    split = data.get("split", {"valid": 0.1, "test": 0.1, "by": "order"})
    model, train = DeepFMConfig(), TrainConfig()
    lines = [
        "# Written by ctrpipe init from the head of the data. 'ctrpipe check' shows the plan,",
        "# 'ctrpipe run' trains; 'ctrpipe schema' explains every key to your editor.",
        "# Paths are relative to the folder that ctrpipe runs in.",
        f"name: {flow_yaml(name)}",
        "data:",
        _line(
            f"  train: {flow_yaml(data['train'])}",
            "a file, a list or a glob" if source.format.keys else "a table, or a list",
        ),
    ]
    if "columns" in data:
        lines.append(f"  columns: {flow_yaml(data['columns'])}")
    elif not source.has_header and source.is_delimited:
        lines.append(f"  columns: {flow_yaml(list(source.column_names))}")
    if "skip_lines" in data:
        text = f"  skip_lines: {data['skip_lines']}"
        lines.append(_line(text, "lines above the names that are no rows"))
    if "escape" in data:
        lines.append(
            _line(f"  escape: {flow_yaml(data['escape'])}", "before a quote within quotes")
        )
    lines += [
        _line(f"  {key}: {flow_yaml(data[key])}", comment)
        for key, comment in _SAID.items()
        if key in data
    ]
    lines += [
        *_label_lines(data),
        *_missing_lines(data.get("missing_values", ())),
        _line(f"  split: {flow_yaml(split)}", "order | random | time or hash of a column"),
        "features:   # number: a dense input; id: an embedded field; features: auto decides anew",
    ]
    lines += [line for feature in decided.features for line in _feature_lines(feature)]
    lines += [
        f"  # left out: {flow_yaml(decision.column)}, because {decision.reason}"
        for decision in decided.left_out
    ]
    hidden = flow_yaml(list(model.hidden_units))
    lines += [
        "model:",
        _line(f"  name: {model.name}", " | ".join(MODELS)),
        _line(f"  embedding_dim: {model.embedding_dim}", "length of an embedding"),
        _line(f"  hidden_units: {hidden}", "layer sizes of the deep part"),
        "train:",
        _line(f"  epochs: {train.epochs}", "at most; early stopping may end it earlier"),
        _line(f"  batch_size: {train.batch_size}", "rows per step"),
        _line(f"output: {flow_yaml(f'runs/{name}')}", "the run folder"),
    ]
    return "\n".join(lines) + "\n"


def _missing_lines(words: Sequence[str]) -> list[str]:
    if not words:
        return []
    return [_line(f"  missing_values: {flow_yaml(list(words))}", "and what is empty")]


def _label_lines(data: dict[str, Any]) -> list[str]:
    label = f"  label: {flow_yaml(data['label'])}"
    if "positive" not in data:
        return [_line(label, "0 or 1")]
    lines = [
        label,
        _line(f"  positive: {flow_yaml(data['positive'])}", "what label 1 is written as"),
    ]
    if data["negative"].lower() != opposite_of(data["positive"]):
        lines.append(_line(f"  negative: {flow_yaml(data['negative'])}", "what label 0 is"))
    return lines


def _line(text: str, comment: str) -> str:
    return f"{text:<{_COMMENT_COLUMN}} # {comment}"


def _feature_lines(feature: FeatureSpec) -> list[str]:
    entry: dict[str, Any] = {"columns": feature.column}
    if feature.sequence is not None:
        entry["sequence"] = _options(feature.sequence)
    if feature.vector is not None:
        entry["vector"] = _options(feature.vector)
    for key, chain in (("number", feature.number), ("id", feature.id)):
        if chain is not None:
            steps = [_transform(step) for step in chain]
            entry[key] = steps[0] if len(steps) == 1 else steps
    reason = " ".join(feature.reason.split())
    return [f"  # {reason}", f"  - {flow_yaml(entry)}"]


def _transform(step: Transform) -> Any:
    """A transform as YAML, with the options that differ from their defaults."""
    options = {name: value for name, value in _options(step).items() if name != "name"}
    return {step.name: options} if options else step.name


def _options(model: BaseModel) -> dict[str, Any]:
    """Options that differ from their defaults."""
    fields = type(model).model_fields
    return {
        name: value
        for name, value in model.model_dump().items()
        if fields[name].is_required() or value != fields[name].default
    }
