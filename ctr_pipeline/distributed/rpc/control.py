"""Control messages as JSON: frozen dataclasses to bytes and back, strictly.

A message that lacks a key, has one too many, or a value of another type is refused whole. Floats
keep every bit, also NaN and infinities (as Python's JSON writes them); integers have any size.
"""

import json
import types
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from ctr_pipeline.distributed.rpc.failures import MalformedMessage

T = TypeVar("T")
_Reader = Callable[[Any, str], Any]


def encode(message: object) -> bytes:
    """A message as UTF-8 JSON.

    Raises:
        TypeError: It is no dataclass, or holds what JSON cannot carry.
    """
    if not is_dataclass(message) or isinstance(message, type):
        raise TypeError(f"{type(message).__name__} is not a message")
    text = json.dumps(message, default=_fields_of, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "surrogatepass")


def decode(kind: type[T], data: bytes) -> T:
    """The message of that type.

    Raises:
        MalformedMessage: The bytes are none; its text names the place.
    """
    try:
        text = data.decode("utf-8", "surrogatepass")
        value = json.loads(text, object_pairs_hook=_unique_keys)
        return cast("T", _reader_of(cast("Any", kind))(value, kind.__name__))
    except MalformedMessage:
        raise
    except (ValueError, RecursionError) as error:
        raise MalformedMessage(f"{kind.__name__}: {str(error)[:200]}") from None


def _fields_of(value: object) -> dict[str, Any]:
    if not is_dataclass(value) or isinstance(value, type):
        raise TypeError(f"{type(value).__name__} has no place in a message")
    return {name: getattr(value, name) for name in _field_names(type(value))}


@cache
def _field_names(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise MalformedMessage("a key stands twice")
    return found


@cache
def _reader_of(kind: Any) -> _Reader:
    """What turns a JSON value into `kind`; made once per type."""
    if is_dataclass(kind):
        return _dataclass_reader(cast("type", kind))
    origin = get_origin(kind)
    if origin is Literal:
        return _literal_reader(get_args(kind))
    if origin is tuple:
        return _tuple_reader(get_args(kind))
    if origin in {Union, types.UnionType}:
        return _optional_reader(get_args(kind))
    if kind is float:
        return _read_float
    if kind in {int, str, bool}:
        return _exact_reader(kind)
    raise TypeError(f"{kind} has no place in a message")


def _dataclass_reader(kind: type) -> _Reader:
    hints = get_type_hints(kind)
    readers = tuple((name, _reader_of(hints[name])) for name in _field_names(kind))
    names = frozenset(hints)

    def read(value: Any, place: str) -> Any:
        if type(value) is not dict:
            raise MalformedMessage(f"{place}: an object is expected")
        if value.keys() != names:
            raise MalformedMessage(f"{place}: {_difference(value.keys(), names)}")
        return kind(**{name: item(value[name], f"{place}.{name}") for name, item in readers})

    return read


def _difference(found: Any, expected: frozenset[str]) -> str:
    missing = sorted(expected - found)
    unknown = [str(name)[:40] for name in sorted(found - expected)][:5]
    parts = [f"{', '.join(missing)} missing"] if missing else []
    if unknown:
        parts.append(f"{', '.join(unknown)} unknown")
    return "; ".join(parts)


def _tuple_reader(arguments: tuple[Any, ...]) -> _Reader:
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        item = _reader_of(arguments[0])

        def read_many(value: Any, place: str) -> Any:
            if type(value) is not list:
                raise MalformedMessage(f"{place}: a list is expected")
            return tuple(item(entry, place) for entry in value)

        return read_many
    items = tuple(_reader_of(argument) for argument in arguments)

    def read_each(value: Any, place: str) -> Any:
        if type(value) is not list or len(value) != len(items):
            raise MalformedMessage(f"{place}: a list of {len(items)} is expected")
        return tuple(item(entry, place) for item, entry in zip(items, value, strict=True))

    return read_each


def _optional_reader(arguments: tuple[Any, ...]) -> _Reader:
    others = [argument for argument in arguments if argument is not type(None)]
    if len(others) != 1 or len(others) == len(arguments):
        raise TypeError(f"a message may hold 'X | None', not a union of {arguments}")
    item = _reader_of(others[0])
    return lambda value, place: None if value is None else item(value, place)


def _literal_reader(allowed: tuple[Any, ...]) -> _Reader:
    def read(value: Any, place: str) -> Any:
        if type(value) is not str or value not in allowed:
            raise MalformedMessage(f"{place}: one of {', '.join(allowed)} is expected")
        return value

    return read


def _exact_reader(kind: type) -> _Reader:
    def read(value: Any, place: str) -> Any:
        # A bool is an int to Python, and no number to us.
        if type(value) is not kind:
            raise MalformedMessage(f"{place}: {kind.__name__} is expected")
        return value

    return read


def _read_float(value: Any, place: str) -> float:
    if type(value) not in {float, int}:
        raise MalformedMessage(f"{place}: float is expected")
    try:
        return float(value)
    except OverflowError:
        raise MalformedMessage(f"{place}: too large for a float") from None
