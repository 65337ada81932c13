"""Key paths such as `features[0].id` as tuples, and nested values reached by them."""

import re
from collections.abc import Sequence
from typing import Any

KeyPath = tuple[str | int, ...]

_STEP = re.compile(r"\.?([^.\[\]]+)|\[(\d+)\]")
_WHOLE = re.compile(r"[^.\[\]]+(?:\.[^.\[\]]+|\[\d+\])*")


class KeyPathError(ValueError):
    """A key path that cannot be read, or that leads nowhere."""


def parse_key_path(text: str) -> KeyPath:
    """The steps of `a.b[0].c`: text for a key, a number for a place in a list.

    Raises:
        KeyPathError: The text is not a key path.
    """
    if _WHOLE.fullmatch(text) is None:
        raise KeyPathError(f"'{text}' is not a key path such as train.epochs or features[0].id")
    return tuple(key or int(index) for key, index in _STEP.findall(text))


def render_key_path(path: Sequence[str | int]) -> str:
    """The text of a key path: `("features", 0, "id")` is `features[0].id`."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            text += f".{step}" if text else step
    return text


def value_at(root: Any, path: Sequence[str | int]) -> Any:
    """The value at a path of nested mappings and lists; None if there is none."""
    node = root
    for step in path:
        if isinstance(step, int):
            if not isinstance(node, list | tuple) or step >= len(node):
                return None
            node = node[step]
        else:
            if not isinstance(node, dict) or step not in node:
                return None
            node = node[step]
    return node


def put_at(root: dict[str, Any], path: KeyPath, value: Any) -> None:
    """Sets the value at a path, making the mappings on the way that are absent or null.

    Raises:
        KeyPathError: The path runs through something that is neither, or past the end of a list.
    """
    node: Any = root
    for depth, step in enumerate(path):
        is_last = depth == len(path) - 1
        here = render_key_path(path[:depth]) or "the config"
        if isinstance(step, int):
            if not isinstance(node, list):
                raise KeyPathError(f"{here} is not a list, so it has no entry [{step}]")
            if step >= len(node):
                raise KeyPathError(f"{here} has {len(node)} entries, counted from [0]")
            if is_last:
                node[step] = value
            elif node[step] is None:
                node[step] = {}
            node = node[step]
        else:
            if not isinstance(node, dict):
                raise KeyPathError(f"{here} is not a mapping, so it has no key '{step}'")
            if is_last:
                node[step] = value
            elif node.get(step) is None:
                if isinstance(path[depth + 1], int):
                    there = render_key_path(path[: depth + 1])
                    raise KeyPathError(
                        f"{there} is not a list, so it has no entry {path[depth + 1]}"
                    )
                node[step] = {}
            node = node[step]
