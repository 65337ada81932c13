"""What pydantic found wrong, in the words of someone who writes YAML."""

import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from ctr_pipeline.config.key_facts import fields_below, models_in
from ctr_pipeline.config.key_paths import KeyPath, render_key_path, value_at
from ctr_pipeline.config.models import Config
from ctr_pipeline.config.yaml_source import Source
from ctr_pipeline.specs.model_kinds import ModelConfig, nearest_model_name
from ctr_pipeline.specs.section import NamedSection
from ctr_pipeline.transforms import TRANSFORMS
from ctr_pipeline.transforms.base import Transform

Loc = tuple[str | int, ...]

_SHOWN_CHARACTERS = 60
_UNION_MODELS = {
    model.__name__
    for _, info in fields_below(Config)
    if get_origin(info.annotation) in {Union, UnionType}
    for model in get_args(info.annotation)
    if isinstance(model, type)
    and issubclass(model, BaseModel)
    and {str, Literal} & {get_origin(one) or one for one in get_args(info.annotation)}
}
"""Models that stand beside a text in a union; pydantic names them in its locations."""
_BOOLEANS = {"yes": "true", "on": "true", "y": "true", "no": "false", "off": "false", "n": "false"}

_EXPECTED: Mapping[str, str] = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing_size": "a smaller whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "text",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "a mapping (key: value)",
    "model_type": "a mapping (key: value)",
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "too_short": "at least {min_length} entries",
    "too_long": "at most {max_length} entries",
    "string_too_short": "at least {min_length} character(s)",
    "string_too_long": "at most {max_length} character(s)",
}


_ELSEWHERE: Mapping[str, str] = {
    "lr": "train.optimizer.learning_rate",
    "lr_schedule": "train.learning_rate_schedule",
    "lr_scheduler": "train.learning_rate_schedule",
    "weight_decay": "train.optimizer.l2",
    "l2_reg": "train.embeddings.vector.l2.strength",
    "embedding_regularizer": "train.embeddings.vector.l2.strength",
    "bs": "train.batch_size",
    "num_epochs": "train.epochs",
    "n_epochs": "train.epochs",
    "max_epochs": "train.epochs",
    "monitor": "train.early_stopping.metric",
    "early_stop_patience": "train.early_stopping.patience",
    "patience_epochs": "train.early_stopping.patience",
    "type": "model.name",
    "layers": "model.hidden_units",
    "hidden_layers": "model.hidden_units",
    "dnn_hidden_units": "model.hidden_units",
    "mlp_hidden_units": "model.hidden_units",
    "emb_dim": "model.embedding_dim",
    "embedding_size": "model.embedding_dim",
    "net_dropout": "model.dropout",
    "dnn_dropout": "model.dropout",
    "num_cross_layers": "model.cross_layers",
    "low_rank": "model.cross_rank",
    "sep": "data.delimiter",
    "separator": "data.delimiter",
    "na_values": "data.missing_values",
    "target": "data.label",
    "label_column": "data.label",
    "label_col": "data.label",
    "train_data": "data.train",
    "valid_data": "data.valid",
    "test_data": "data.test",
    "validation_split": "data.split.valid",
    "test_size": "data.split.test",
    "negative_sampling": "data.sample.negatives",
    "numeric_features": "features",
    "categorical_features": "features",
    "dense_features": "features",
    "sparse_features": "features",
    "n_jobs": "runtime.threads",
    "num_threads": "runtime.threads",
    "num_workers": "runtime.workers",
    "output_dir": "output",
    **dict.fromkeys(("min_freq", "min_frequency"), "vocabulary: {min_count: …} of a feature's id"),
    **dict.fromkeys(("max_features", "max_tokens"), "vocabulary: {max_size: …} of a feature's id"),
}
"""Keys that other tools of the field have, and where their meaning stands here."""

_OPTIONS_ELSEWHERE: Mapping[str, str] = {
    "min_freq": "min_count",
    "min_frequency": "min_count",
    "max_features": "max_size",
    "max_tokens": "max_size",
    "num_oov_indices": "oov_buckets",
    "hash_bucket_size": "buckets",
    "num_bins": "quantiles",
    "n_bins": "quantiles",
    "bins": "quantiles",
}
"""The same for the options of transforms."""


def nearest(name: str, known: Iterable[str], likeness: float = 0.6) -> str | None:
    """The known name most like `name`, if one is like it at all; case does not count."""
    by_lower = {candidate.lower(): candidate for candidate in known}
    matches = get_close_matches(name.lower(), by_lower, n=1, cutoff=likeness)
    return by_lower[matches[0]] if matches else None


def lacks_column(subject: str, name: str) -> str:
    """The problem that a config names a column that is not there, with how a range is written."""
    range_hint = "; a range of columns is written I1..I13" if "*" in name else ""
    return f"{subject} no column '{name}'{range_hint}"


def describe(value: Any) -> str:
    """A value as an error message shows it."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        shown = value if len(value) <= _SHOWN_CHARACTERS else value[:_SHOWN_CHARACTERS] + "…"
        return f"the text '{shown}'"
    if isinstance(value, int | float):
        return f"the number {value}"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    return "a mapping"


def explain_errors(errors: Sequence[ErrorDetails], values: dict[str, Any], source: Source) -> None:
    """Adds each of pydantic's errors about `values` to the problems of `source`, once."""
    seen: set[tuple[KeyPath, str]] = set()
    branches = _branches_of(errors)
    for error in errors:
        if _is_other_branch(error["loc"], values, branches):
            continue
        path = _path_in_values(error["loc"], values)
        if error["type"] == "missing":
            path = (*path, str(error["loc"][-1]))
        if (
            error["type"] == "too_short"
            and len(value_at(values, path)) >= error["ctx"]["min_length"]
        ):
            # Entries that are wrong are not counted, and are told of themselves.
            continue
        if error["type"] == "union_tag_invalid" and value_at(values, (*path, "name")) is not None:
            path = (*path, "name")
        message, suggestion = _explain(error, path, values)
        if (path, message) not in seen:
            seen.add((path, message))
            source.add(path, message, suggestion)


def _explain(error: ErrorDetails, path: KeyPath, values: Any) -> tuple[str, str | None]:
    kind, context = error["type"], error.get("ctx", {})
    found = value_at(values, path)
    if kind == "missing":
        return _explain_missing(error["loc"]), None
    if kind == "extra_forbidden":
        return _explain_unknown_key(error["loc"])
    if kind == "value_error":
        return str(context["error"]), None
    if kind == "union_tag_invalid":
        return _unknown_name(str(context["tag"]), _sections_at(error["loc"]))
    if kind in {"union_tag_not_found", "model_attributes_type"}:
        return _explain_shape(found, _sections_at(error["loc"]))
    if kind == "literal_error" and path == ("features",):
        return f"expected auto or a list of entries, found {describe(found)}", "auto"
    if kind == "literal_error":
        names = [str(choice).strip("'") for choice in _choices(context)]
        mappings = _sections_at(error["loc"]) if _is_union(error["loc"]) else []
        shapes = [f"a mapping of {', '.join(section.model_fields)}" for section in mappings]
        expected = " | ".join([*names, *shapes])
        return f"expected {expected}, found {describe(found)}", nearest(str(found), names)
    if kind in {"string_type", "tuple_type"} and _is_union(error["loc"]):
        return f"expected text or a list of texts, found {describe(found)}", None
    if kind == "bool_type" and isinstance(found, str) and found.lower() in _BOOLEANS:
        return f"expected true or false, found {describe(found)}", _BOOLEANS[found.lower()]
    if kind in {"int_type", "int_from_float"} and isinstance(found, float):
        whole = str(int(found)) if found.is_integer() else None
        return f"expected a whole number, found {describe(found)}", whole
    if kind == "model_type" and path and path[0] == "features":
        return f"expected an entry such as {{columns: I1..I13}}, found {describe(found)}", None
    if kind == "string_type" and isinstance(found, int | float | bool):
        return f"expected text, found {describe(found)}; put it in quotes", None
    if kind == "string_type" and found is None and isinstance(path[-1], int):
        return "expected text, found nothing; write null or NULL in quotes, as YAML wants it", None
    if kind in _EXPECTED:
        return f"expected {_EXPECTED[kind].format(**context)}, found {describe(found)}", None
    # A kind of error that no field of the models can give today.
    return f"is not valid: {describe(found)}", None


def _choices(context: Mapping[str, Any]) -> list[str]:
    return str(context["expected"]).replace(" or ", ", ").split(", ")


def _explain_missing(loc: Sequence[str | int]) -> str:
    key = str(loc[-1])
    for section in _sections_at(loc[:-1]):
        if key in section.model_fields:
            return f"is required and not given: {section.model_fields[key].description}"
    return "is required and not given"


_CREDENTIAL = re.compile(r"(?i)access_?(id|key)|secret|password|sts_?token|bearer")


def _explain_unknown_key(loc: Sequence[str | int]) -> tuple[str, str | None]:
    key = str(loc[-1])
    sections = _sections_at(loc[:-1])
    is_transform = any(issubclass(section, Transform) for section in sections)
    known = [
        name
        for section in sections
        for name in section.model_fields
        if not (is_transform and name == "name")
    ]
    elsewhere = {} if is_transform else _paths_by_key()
    if _CREDENTIAL.search(key):
        return (
            "credentials do not belong in a config; remove the key and set ODPS_ACCESS_ID and "
            "ODPS_ACCESS_KEY in the environment",
            None,
        )
    if _OPTIONS_ELSEWHERE.get(key) in known:
        return "unknown key", _OPTIONS_ELSEWHERE[key]
    if owners := _owners_of(key, loc):
        return f"'{loc[-2]}' has no key '{key}'; it belongs to {', '.join(owners)}", None
    if key in elsewhere:
        return "unknown key here", elsewhere[key]
    if key in _ELSEWHERE and not is_transform:
        return "unknown key", _ELSEWHERE[key]
    if key in {"gpu", "device", "cuda"}:
        return "unknown key; training runs on processors, so remove it", None
    if suggestion := nearest(key, known):
        return "unknown key", suggestion
    if match := nearest(key, elsewhere, likeness=0.8):
        return "unknown key here", elsewhere[match]
    return f"unknown key; known here: {', '.join(known) or 'none'}", None


def _owners_of(key: str, loc: Sequence[str | int]) -> list[str]:
    """Names of the other kinds of a section that have a key; none if it is of one kind."""
    if len(loc) < 2:
        return []
    return [
        section.model_fields["name"].default
        for section in _sections_at(loc[:-2])
        if issubclass(section, NamedSection) and key in section.model_fields
    ]


def _explain_shape(found: Any, kinds: Sequence[type[BaseModel]]) -> tuple[str, str | None]:
    """What is wrong with something that names no kind of a section, or no transform."""
    if issubclass(kinds[0], NamedSection):
        example = kinds[0].model_fields["name"].default
        return f"expected a mapping such as {{name: {example}}}, found {describe(found)}", None
    example = "write a name such as log, or a name with options such as {hash: {buckets: 1000}}"
    if isinstance(found, dict) and len(found) == 1:
        ((name, options),) = found.items()
        if name not in TRANSFORMS:
            return _unknown_name(str(name), kinds)
        message = f"the options of {name} must be a mapping, found {describe(options)}"
        return f"{message}; for example {TRANSFORMS[name].example}", None
    if isinstance(found, dict) and found:
        names = ", ".join(map(str, found))
        return f"found {len(found)} names ({names}) in one entry; {example}", None
    return f"{example}; found {describe(found)}", None


def _unknown_name(name: str, kinds: Sequence[type[BaseModel]]) -> tuple[str, str | None]:
    """What is wrong with a name that is none of several sections, or of transforms."""
    first = kinds[0]
    if not issubclass(first, NamedSection):
        known = list(TRANSFORMS)
        return f"unknown transform '{name}'; known: {', '.join(known)}", nearest(name, known)
    known = [kind.model_fields["name"].default for kind in kinds]
    near = nearest_model_name(name) if issubclass(first, ModelConfig) else nearest(name, known)
    return f"unknown {first.noun} '{name}'; known: {', '.join(known)}", near


def _is_label(step: str | int) -> bool:
    return isinstance(step, str) and _kind_of_branch(step) is not None


def _kind_of_branch(label: str) -> str | None:
    """What a branch of a union takes: list, mapping or text; None if this names no branch."""
    if label.startswith("tuple["):
        return "list"
    if label == "str" or label.startswith("literal["):
        return "text"
    # A model with a check of its own is function-after[_check(), Name].
    return "mapping" if label.rpartition(" ")[2].rstrip("]") in _UNION_MODELS else None


def _is_union(loc: Sequence[str | int]) -> bool:
    return _is_label(loc[-1])


def _branches_of(errors: Sequence[ErrorDetails]) -> dict[Loc, set[str]]:
    """Kinds of the branches of each union that failed, by its location of pydantic's.

    A union fails if all of its branches do, so that all of them are among the errors.
    """
    branches: dict[Loc, set[str]] = {}
    for error in errors:
        for depth, step in enumerate(error["loc"]):
            kind = _kind_of_branch(str(step))
            if kind is not None:
                branches.setdefault(error["loc"][:depth], set()).add(kind)
    return branches


def _is_other_branch(loc: Loc, values: Any, branches: Mapping[Loc, set[str]]) -> bool:
    """Whether the error is about a reading of the value that its author did not mean."""
    for depth, step in enumerate(loc):
        kind = _kind_of_branch(str(step))
        if kind is None:
            continue
        value = value_at(values, _path_in_values(loc[:depth], values))
        meant = "text"
        if isinstance(value, list | tuple):
            meant = "list"
        elif isinstance(value, dict):
            meant = "mapping"
        # What fits no branch is explained as the text that it might have been.
        if kind != (meant if meant in branches[loc[:depth]] else "text"):
            return True
    return False


def _path_in_values(loc: Sequence[str | int], values: Any) -> KeyPath:
    """The part of pydantic's location that the author wrote.

    Left out are the names of union branches and the tags of transforms given as `name:`.
    """
    path: list[str | int] = []
    node = values
    for step in loc:
        if isinstance(step, int):
            if isinstance(node, list | tuple) and step < len(node):
                path.append(step)
                node = node[step]
        elif isinstance(node, dict) and step in node:
            path.append(step)
            node = node[step]
    return tuple(path)


def _sections_at(loc: Sequence[str | int]) -> list[type[BaseModel]]:
    """The models that could stand at a location of pydantic's."""
    sections: list[type[BaseModel]] = [Config]
    for step in loc:
        if isinstance(step, int) or _is_label(step):
            continue
        named = [section for section in sections if _is_named(section, step)]
        if named:
            sections = named
            continue
        for section in sections:
            if step in section.model_fields:
                sections = models_in(section.model_fields[step].annotation)
                break
    return sections


def _is_named(section: type[BaseModel], name: str) -> bool:
    """Whether a section is the one of a union whose `name` is this."""
    is_one_of_several = issubclass(section, NamedSection | Transform)
    return is_one_of_several and section.model_fields["name"].default == name


def _paths_by_key() -> dict[str, str]:
    """Where each key belongs, its shallowest place; not those inside lists and of a search."""
    paths: dict[str, str] = {}
    level: list[tuple[KeyPath, type[BaseModel]]] = [((), Config)]
    while level:
        below: list[tuple[KeyPath, type[BaseModel]]] = []
        for path, section in level:
            for key, info in section.model_fields.items():
                paths.setdefault(key, render_key_path((*path, key)))
                if key not in {"features", "tune"}:
                    below += [((*path, key), model) for model in models_in(info.annotation)]
        level = below
    return paths
