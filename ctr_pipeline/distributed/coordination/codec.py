"""Dataclasses as JSON and back: messages between members, and records of the ledger.

Pydantic reads and writes them by their annotations. A message that lacks a key without a default,
has one that nobody knows, or a value of another type is refused whole. Floats keep every bit, also
NaN and infinities (as Python's JSON writes them); integers have any size.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar, get_type_hints

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, to_json, to_jsonable_python

T = TypeVar("T")

_ERRORS_SHOWN = 3
_LONGEST_ERROR = 100
_ADAPTERS: dict[Any, TypeAdapter[Any]] = {}
_FIELD_TYPES: dict[type, Mapping[str, Any]] = {}
_WORDS = {"missing": "is missing", "unexpected_keyword_argument": "is unknown"}


class MalformedMessage(ValueError):  # noqa: N818
    """Data are not the message, or the record, that was expected."""


def encode(message: object) -> bytes:
    """A message as UTF-8 JSON; what is no Unicode in its texts, as in odd file names, becomes `?`.

    Raises:
        ValueError: It holds what JSON cannot carry.
    """
    try:
        return to_json(message)
    except PydanticSerializationError:
        text = json.dumps(to_record(message), ensure_ascii=False, separators=(",", ":"))
        return text.encode("utf-8", "replace")


def decode(kind: type[T], data: bytes) -> T:
    """The message of that type.

    Raises:
        MalformedMessage: The bytes are none; its text names the place.
    """
    try:
        return _adapter_of(kind).validate_json(data, strict=True, extra="forbid")
    except ValidationError as error:
        raise _explained(kind, error) from None


def to_record(value: object) -> Any:
    """A value as JSON holds it: mappings, lists, texts and numbers.

    Raises:
        ValueError: It holds what JSON cannot carry.
    """
    return to_jsonable_python(value, inf_nan_mode="constants")


def from_record(kind: type[T], record: object) -> T:
    """The value that `to_record` was given.

    Raises:
        MalformedMessage: The record is of none; its text names the place.
    """
    try:
        return _adapter_of(kind).validate_python(record, extra="forbid")
    except ValidationError as error:
        raise _explained(kind, error) from None


def fields_to_record(target: object, names: Iterable[str]) -> dict[str, Any]:
    """Some fields of a dataclass, by name, as JSON holds them."""
    return {name: to_record(getattr(target, name)) for name in names}


def set_fields(target: object, record: Mapping[str, Any]) -> None:
    """Sets the fields of a dataclass that `fields_to_record` gave.

    Raises:
        MalformedMessage: A field is unknown, or its value is of another type.
    """
    kinds = _field_types(type(target))
    for name, value in record.items():
        if name not in kinds:
            raise MalformedMessage(f"{type(target).__name__}.{name} is unknown")
        setattr(target, name, from_record(kinds[name], value))


def _adapter_of(kind: type[T]) -> TypeAdapter[T]:
    adapter = _ADAPTERS.get(kind)
    if adapter is None:
        adapter = _ADAPTERS[kind] = TypeAdapter(kind)
    return adapter


def _field_types(kind: type) -> Mapping[str, Any]:
    if kind not in _FIELD_TYPES:
        _FIELD_TYPES[kind] = get_type_hints(kind)
    return _FIELD_TYPES[kind]


def _explained(kind: Any, error: ValidationError) -> MalformedMessage:
    name = getattr(kind, "__name__", str(kind))
    found = error.errors(include_url=False, include_context=False, include_input=False)
    places = []
    for one in found[:_ERRORS_SHOWN]:
        place = "".join(f".{step}"[:_LONGEST_ERROR] for step in one["loc"])
        words = _WORDS.get(one["type"], f": {one['msg']}"[:_LONGEST_ERROR])
        places.append(f"{name}{place}{words if words.startswith(':') else f' {words}'}")
    if len(found) > _ERRORS_SHOWN:
        places.append(f"and {len(found) - _ERRORS_SHOWN} more")
    return MalformedMessage("; ".join(places))
