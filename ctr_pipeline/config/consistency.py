"""What the keys of a config must agree on among themselves.

These checks look at plain values, so that they also speak when other keys are wrong.
"""

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from pydantic import ValidationError

from ctr_pipeline.config.explanations import lacks_column, nearest
from ctr_pipeline.config.key_facts import default_at, keys_with
from ctr_pipeline.config.key_paths import KeyPath, value_at
from ctr_pipeline.config.label_values import LabelValues, as_written, opposite_of
from ctr_pipeline.config.models import Config, RuntimeConfig
from ctr_pipeline.config.ranges import ALL_COLUMNS
from ctr_pipeline.config.yaml_source import Source
from ctr_pipeline.features import cross_name
from ctr_pipeline.specs.launchers import LAUNCHERS, LauncherKind
from ctr_pipeline.specs.model_kinds import MODELS
from ctr_pipeline.specs.section import ServersOnly
from ctr_pipeline.transforms import TRANSFORMS

_COLUMN_KEYS: tuple[KeyPath, ...] = (
    ("data", "label"),
    ("data", "weight"),
    ("data", "split", "column"),
    ("data", "key_columns"),
    ("evaluation", "gauc_column"),
    ("evaluation", "group_by"),
)


def check_consistency(values: dict[str, Any], source: Source) -> None:
    """Adds to the problems of `source` what contradicts itself in `values`."""
    _check_columns(values, source)
    _check_label_values(values, source)
    _check_splits(values, source)
    _check_runtime(values, source)
    _check_ensemble(values, source)
    _check_refit(values, source)
    _check_target(values, source)
    entries = value_at(values, ("features",))
    for index, entry in enumerate(entries if isinstance(entries, list | tuple) else ()):
        for key in ("number", "id"):
            path: KeyPath = ("features", index, key)
            _check_chain(key, value_at(entry, (key,)), path, source)


def check_sections(config: Config, source: Source) -> None:
    """Adds to the problems of `source` what sections that are right say against each other."""
    try:
        _ = config.member_models
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        reason = first.get("ctx", {}).get("error", first["msg"])
        source.add(("train", "ensemble_models"), f"with the keys of model: {reason}")
    stopping = config.train.early_stopping
    waits = config.train.learning_rate_schedule.epochs_waited
    if waits is not None and stopping is not None and waits >= stopping.patience:
        source.add(
            ("train", "learning_rate_schedule"),
            f"a patience of {waits} epochs changes nothing before train.early_stopping.patience, "
            f"{stopping.patience}, stops the training; raise that",
        )


def _texts(value: Any) -> list[str]:
    """The texts of a list, or of a text alone."""
    items = value if isinstance(value, list | tuple) else [value]
    return [item for item in items if isinstance(item, str)]


def _check_carried(values: dict[str, Any], label: Any, source: Source) -> None:
    """Columns that stand beside predictions may not be called as those are."""
    taken = {"probability", "label"} - {label}
    for path in (("data", "key_columns"), ("data", "weight"), ("evaluation", "gauc_column")):
        for name in _texts(value_at(values, path)):
            if name in taken:
                message = (
                    f"'{name}' is what predictions call a column of their own, and this one stands "
                    "beside it; give the column of the data another name"
                )
                source.add(path, message)


def _check_columns(values: dict[str, Any], source: Source) -> None:
    label = value_at(values, ("data", "label")) or "label"
    weight = value_at(values, ("data", "weight"))
    is_by_time = value_at(values, ("data", "split", "by")) == "time"
    if is_by_time and value_at(values, ("data", "split", "column")) == label:
        source.add(("data", "split", "column"), f"'{label}' is the label, which tells no time")
    if weight == label:
        source.add(("data", "weight"), f"'{label}' is the label; rows of label 0 would not count")
    _check_carried(values, label, source)
    for index, entry in enumerate(_entries(values)):
        for key in ("columns", "cross"):
            mentioned = _texts(value_at(entry, (key,)))
            if isinstance(label, str) and label in mentioned:
                source.add(
                    ("features", index, key),
                    f"'{label}' is the label; as a feature it would give the answer away",
                )
            if isinstance(weight, str) and weight in mentioned:
                source.add(
                    ("features", index, key),
                    f"'{weight}' is data.weight, the weight of rows, and cannot be a feature as "
                    "well; rows to be scored have no weight",
                )
    columns = _texts(value_at(values, ("data", "columns")) or [])
    if not columns:
        return
    known = set(columns)
    if doubles := sorted(
        {name for name in columns if columns.count(name) > 1} if len(known) < len(columns) else ()
    ):
        source.add(("data", "columns"), f"named twice: {', '.join(doubles[:5])}")
    if (
        isinstance(label, str)
        and label not in known
        and value_at(values, ("data", "label")) is None
    ):
        source.add(
            ("data", "columns"),
            "no column is called 'label', the default of data.label; name the label in data.label",
        )
    cut = value_at(values, ("data", "key_value"))
    if isinstance(cut, dict):
        for name in _texts(cut.get("column") or []):
            if name not in known:
                message = lacks_column("data.columns has", name)
                source.add(("data", "key_value", "column"), message, nearest(name, columns))
        if not cut.get("keys"):
            # Any other name may be that of a key.
            return
        known |= set(_texts(cut["keys"]))
    for path, name in _named_columns(values):
        if name not in known:
            message = lacks_column("data.columns has", name)
            source.add(path, message, nearest(name, columns))


def check_header(values: dict[str, Any], header: Sequence[str], source: Source) -> None:
    """Adds to the problems of `source` each column that `values` name and the data lacks.

    Args:
        values: Values of a config, whatever else may be wrong with it.
        header: Columns of the data.
        source: Where the values come from.
    """
    known = set(header)
    for path, name in _named_columns(values):
        if name not in known:
            source.add(path, lacks_column("the data has", name), nearest(name, header))
    if value_at(values, ("data", "label")) is None and "label" not in known:
        source.add(("data", "label"), "is not given, and the data has no column 'label'")


def _named_columns(values: dict[str, Any]) -> list[tuple[KeyPath, str]]:
    """Columns of the data that a config names, with where it does."""
    named = [(path, name) for path in _COLUMN_KEYS for name in _texts(value_at(values, path))]
    for index, entry in enumerate(_entries(values)):
        for key in ("columns", "cross"):
            path: KeyPath = ("features", index, key)
            # What still has dots was a bad range, which has been named already.
            named += [
                (path, name)
                for name in _texts(value_at(entry, (key,)))
                if ".." not in name and name != ALL_COLUMNS
            ]
    return named


def _check_label_values(values: dict[str, Any], source: Source) -> None:
    positive = as_written(value_at(values, ("data", "positive")))
    negative = as_written(value_at(values, ("data", "negative")))
    if positive is None and negative is not None:
        source.add(("data", "negative"), "is of use only beside data.positive; give that, too")
    if not isinstance(positive, str) or not isinstance(negative, str | None):
        return
    opposite = opposite_of(positive) if negative is None else negative
    if opposite is None:
        source.add(
            ("data", "positive"),
            f"'{positive}' has no opposite that goes without saying; say in data.negative what "
            "label 0 is written as",
        )
    elif LabelValues(positive, opposite).number_of(opposite) == 1.0:
        source.add(("data", "negative"), "is the same as data.positive")


def _check_splits(values: dict[str, Any], source: Source) -> None:
    for key in ("valid", "test"):
        share = value_at(values, ("data", "split", key))
        names_files = value_at(values, ("data", key)) is not None
        is_share = isinstance(share, int | float) and share != 0
        if names_files and is_share and _is_given(values, ("data", "split", key)):
            source.add(
                ("data", "split", key),
                f"data.{key} already names files for these rows; leave out one of the two",
            )


def _check_runtime(values: dict[str, Any], source: Source) -> None:
    fewest, most = (_number(values, ("runtime", "workers", key)) for key in ("min", "max"))
    if fewest and most and fewest > most >= 1:
        given = "min" if value_at(values, ("runtime", "workers", "min")) is not None else "max"
        source.add(("runtime", "workers", given), f"min {fewest} is above max {most}")
    partitions = _number(values, ("runtime", "partitions"))
    servers = _number(values, ("runtime", "parameter_servers"))
    if partitions and servers and servers > partitions >= 1:
        source.add(
            ("runtime", "parameter_servers"),
            f"{servers} parameter servers for {partitions} partitions leave some without rows; "
            "raise runtime.partitions or take fewer servers",
        )
    update = value_at(values, ("runtime", "update")) or "async"
    for key, updates in (
        ("grads_to_wait", ("sync",)),
        ("max_staleness", ("bounded",)),
        ("scale_learning_rate_by_staleness", ("async", "bounded")),
    ):
        is_given = _is_given(values, ("runtime", key))
        if is_given and update in {"async", "sync", "bounded"} and update not in updates:
            belongs = " or ".join(updates)
            source.add(("runtime", key), f"belongs to update: {belongs}, and update is {update}")
    _check_strategy(values, source)
    heartbeat = _number(values, ("runtime", "heartbeat_seconds"))
    lease = _number(values, ("runtime", "silence_seconds"))
    if heartbeat is not None and lease is not None and lease < 3 * heartbeat:
        source.add(
            ("runtime", "silence_seconds"),
            f"{lease} s is below three heartbeats of {heartbeat} s, so that one lost message would "
            "cost a worker its tasks",
        )
    _check_etcd(value_at(values, ("runtime", "ledger", "etcd")), source)
    kind = _launcher_kind(values)
    if kind is not None and kind.spans_hosts and value_at(values, ("runtime", "tls")) == "off":
        source.add(
            ("runtime", "tls"),
            f"members of mode: {kind.mode} are on several hosts and talk by TLS; leave it out",
        )


_KEYS_OF_ROW_SERVERS = frozenset({"parameter_servers", "startup_timeout_seconds"})
"""Keys of servers that servers of embedding rows alone have, too."""


def _check_strategy(values: dict[str, Any], source: Source) -> None:
    path: KeyPath = ("runtime", "strategy")
    if value_at(values, path) != "allreduce":
        if value_at(values, ("train", "global_batch")) == "fixed":
            source.add(
                ("train", "global_batch"),
                "belongs to runtime.strategy: allreduce; leave it out, or set that",
            )
        if value_at(values, ("runtime", "embeddings")) == "hybrid":
            source.add(
                ("runtime", "embeddings"),
                "hybrid belongs to strategy: allreduce; leave it out, or set that",
            )
        return
    kind = _launcher_kind(values)
    if kind is None:
        source.add(path, "allreduce trains in several processes; set runtime.mode: processes")
    if value_at(values, ("runtime", "workers")) == "auto":
        source.add(
            ("runtime", "workers"), "allreduce needs the number of workers: {min: 1, max: 2}"
        )
    if value_at(values, ("train", "init_from")) is not None:
        source.add(
            ("train", "init_from"),
            "allreduce trains from the start; leave it out, or set "
            "runtime.strategy: parameter_servers",
        )
    is_hybrid = value_at(values, ("runtime", "embeddings")) == "hybrid"
    for name in keys_with(RuntimeConfig, ServersOnly):
        if is_hybrid and name in _KEYS_OF_ROW_SERVERS:
            continue
        if _is_given(values, ("runtime", name)):
            source.add(("runtime", name), "belongs to strategy: parameter_servers; leave it out")


def _launcher_kind(values: dict[str, Any]) -> LauncherKind | None:
    """What starts members; None: training is in this process, or the mode is none that there is."""
    mode = value_at(values, ("runtime", "mode"))
    return LAUNCHERS.get(mode) if isinstance(mode, str) else None


def _check_ensemble(values: dict[str, Any], source: Source) -> None:
    size = value_at(values, ("train", "ensemble"))
    size = size if isinstance(size, int) and not isinstance(size, bool) else 1
    if size > 1 and value_at(values, ("train", "init_from")) is not None:
        source.add(
            ("train", "init_from"),
            "models of an ensemble are trained from the start; leave it out, or set ensemble: 1",
        )
    kinds = value_at(values, ("train", "ensemble_models"))
    num_kinds = len(kinds) if isinstance(kinds, list | tuple) else 0
    if num_kinds and size == 1:
        source.add(("train", "ensemble_models"), "belongs to an ensemble; set train.ensemble: 4")
    elif num_kinds > size >= 1:
        source.add(
            ("train", "ensemble_models"),
            f"names {num_kinds} kinds for {size} models; raise train.ensemble or name fewer",
        )
    dim = value_at(values, ("model", "embedding_dim"))
    for index, kind in enumerate(kinds if num_kinds else ()):
        if isinstance(kind, dict) and kind.get("embedding_dim", dim) != dim:
            source.add(
                ("train", "ensemble_models", index, "embedding_dim"),
                "all models of an ensemble have model.embedding_dim; leave it out here",
            )
    if size > 1 and _launcher_kind(values) is not None:
        source.add(
            ("train", "ensemble"),
            "an ensemble is trained in one process; set runtime.mode: local, or ensemble: 1",
        )


def _check_refit(values: dict[str, Any], source: Source) -> None:
    key: KeyPath = ("train", "refit")
    if value_at(values, key) is not True:
        return
    if _launcher_kind(values) is not None:
        source.add(
            key, "a refit is trained in one process; set runtime.mode: local, or refit: false"
        )
    share = value_at(values, ("data", "split", "test"))
    if value_at(values, ("data", "test")) is None and share == 0:
        source.add(
            key,
            "validation rows are trained on, so that only test rows can tell how good the model "
            "is, and data.split.test leaves none",
        )
    negatives = value_at(values, ("data", "sample", "negatives"))
    if isinstance(negatives, int | float) and negatives < 1:
        source.add(
            key,
            "data.sample.negatives thins out the training rows and not the validation rows, which "
            "cannot be trained on together then; leave out one of the two",
        )


def _check_target(values: dict[str, Any], source: Source) -> None:
    """The feature that sequences are held against has to be one, where features are named."""
    target = value_at(values, ("model", "target"))
    if not isinstance(target, str):
        return
    features: dict[str, bool] = {}
    for entry in _entries(values):
        columns = _texts(value_at(entry, ("columns",)))
        if entry == "auto" or "*" in columns:
            # All columns, whatever they are called.
            return
        is_sequence = value_at(entry, ("sequence",)) is not None
        # Entries of one feature are merged.
        features |= {one: is_sequence or features.get(one, False) for one in columns}
        parts = _texts(value_at(entry, ("cross",)))
        if len(parts) > 1:
            name = value_at(entry, ("name",))
            features[name if isinstance(name, str) else cross_name(tuple(parts))] = False
    if not features:
        return
    if target not in features:
        source.add(
            ("model", "target"), f"there is no feature '{target}'", nearest(target, features)
        )
    elif features[target]:
        source.add(("model", "target"), f"'{target}' is a sequence; a target has one value a row")
    model = value_at(values, ("model", "name"))
    kind = MODELS.get(model) if isinstance(model, str) else None
    if kind is not None and kind.needs_sequences and not any(features.values()):
        source.add(
            ("model", "name"),
            f"{model} looks into sequences, and no feature is one: "
            "add {columns: viewed, sequence: {}, id: vocabulary}, or take another model",
        )


def _check_etcd(address: Any, source: Source) -> None:
    if not isinstance(address, str) or not address:
        return
    place: KeyPath = ("runtime", "ledger", "etcd")
    example = "expected an address such as http://127.0.0.1:2379"
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError:
        source.add(place, f"{example}, and this is no address")
        return
    if "@" in address:
        source.add(place, f"{example}, without user and password, which do not belong in a config")
    elif parts.scheme not in {"http", "https"} or not parts.hostname or port is None:
        source.add(place, f"{example}, found '{address[:60]}'")
    elif parts.path not in {"", "/"} or parts.query or parts.fragment:
        source.add(place, f"{example}, with nothing after the port; keys begin with ledger.prefix")


def _number(values: dict[str, Any], path: KeyPath) -> int | float | None:
    """The number at a path of `runtime`, its default if none is given; None if it is no number."""
    value = value_at(values, path)
    if value is None:
        if isinstance(value_at(values, path[:-1]), str):
            return None
        value = default_at(Config, path)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _is_given(values: dict[str, Any], path: KeyPath) -> bool:
    """Whether a key has another value than its default, which a resolved config spells out."""
    value = value_at(values, path)
    return value is not None and value != default_at(Config, path)


def _entries(values: dict[str, Any]) -> Sequence[Any]:
    entries = value_at(values, ("features",))
    return entries if isinstance(entries, list | tuple) else ()


def transform_name(item: Any) -> str | None:
    """The name of a transform as written in the YAML, `log` or `{hash: {…}}` or `{name: …}`."""
    if isinstance(item, str):
        return item
    if isinstance(item, dict):
        name = item.get("name", next(iter(item)) if len(item) == 1 else None)
        return name if isinstance(name, str) else None
    return None


def _check_chain(key: str, chain: Any, path: KeyPath, source: Source) -> None:
    items = chain if isinstance(chain, list | tuple) else [chain]
    names = [transform_name(item) for item in items if item is not None]
    if not names or any(name not in TRANSFORMS for name in names):
        return
    kinds = [TRANSFORMS[name].kind for name in names if name is not None]
    for index, (name, kind) in enumerate(zip(names, kinds, strict=True)):
        here: KeyPath = (*path, index) if isinstance(chain, list | tuple) else path
        gives_id = kind.gives_id
        if key == "number" and gives_id:
            source.add(here, f"{name} makes an id and not a number; it belongs under id:")
        elif gives_id and index < len(names) - 1:
            source.add(
                here, f"{name} makes an id, so nothing can follow it; {names[index + 1]} does"
            )
        elif kind.takes_text and index > 0:
            source.add(
                here, f"{name} takes the text of the column; {names[index - 1]} gives a number"
            )
    if key == "id" and not kinds[-1].gives_id:
        makers = ", ".join(
            name for name, transform in TRANSFORMS.items() if transform.kind.gives_id
        )
        source.add(path, f"the chain must end in a transform that makes an id: {makers}")
