"""The keys of the config: their fields, defaults and marks, by path."""

from collections.abc import Iterator
from typing import Any, TypeVar, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from ctr_pipeline.config.key_paths import KeyPath, render_key_path

T = TypeVar("T")


def models_in(annotation: Any) -> list[type[BaseModel]]:
    """The models that an annotation such as `tuple[A | B, ...] | None` mentions."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in models_in(part)]


def fields_below(
    section: type[BaseModel], path: KeyPath = ()
) -> Iterator[tuple[KeyPath, FieldInfo]]:
    """Every field of a model and of the models inside it, each with its path."""
    for name, info in section.model_fields.items():
        yield (*path, name), info
        for model in models_in(info.annotation):
            yield from fields_below(model, (*path, name))


def keys_with(section: type[BaseModel], kind: type[T]) -> dict[str, T]:
    """The marks of one kind by dotted key."""
    return {
        render_key_path(path): mark
        for path, info in fields_below(section)
        for mark in info.metadata
        if isinstance(mark, kind)
    }


def field_at(section: type[BaseModel], path: KeyPath) -> FieldInfo | None:
    """The field at a path of a model; None if there is no such key."""
    sections, info = [section], None
    for step in path:
        info = next(
            (one.model_fields[str(step)] for one in sections if step in one.model_fields), None
        )
        if info is None:
            return None
        sections = models_in(info.annotation)
    return info


def default_at(section: type[BaseModel], path: KeyPath) -> Any:
    """The default of the key at a path of a model; None if there is no such key."""
    info = field_at(section, path)
    return None if info is None else info.default


def keys_set(section: BaseModel) -> set[str]:
    """Keys that are given another value than their default.

    A key at its default does not count as given: a resolved config spells all of them out.
    """
    fields = type(section).model_fields
    return {
        key
        for key in section.model_fields_set
        if getattr(section, key) != fields[key].get_default(call_default_factory=True)
    }
