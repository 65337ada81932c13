"""Files that are no YAML: what is wrong, said so that a person can mend it."""

from pathlib import Path
from typing import Final

from ctr_pipeline.errors import ConfigError, ConfigProblem

MAX_CONFIG_BYTES: Final = 10_000_000
"""A larger file is a data file given by mistake."""

_MEANINGS: Final[tuple[tuple[str, str], ...]] = (
    ("'\\t'", "a tab where YAML allows only spaces; indent with spaces"),
    ("mapping values are not allowed", "a ':' that starts no key; put the text in quotes"),
    ("could not find expected ':'", "a key without ':' after it"),
    ("expected ',' or ']'", "a list [ … ] that is not closed, or a comma missing in it"),
    ("expected ',' or '}'", "a mapping { … } that is not closed, or a comma missing in it"),
    ("expected <block end>", "this line's indentation does not fit the lines above it"),
    ("unexpected end of stream", "a quote that is not closed"),
    ("but found another document", "a second document ('---'); a config is one document"),
    ("found undefined alias", "an alias (*name) of an anchor (&name) that does not exist"),
    ("cannot start any token", "a character that cannot stand here; put the text in quotes"),
    ("unknown escape character", "a backslash that YAML does not know; use 'single quotes'"),
    ("special characters are not allowed", "a control character; is this a text file?"),
)


def read_yaml_text(path: Path) -> str:
    """The text of a config file.

    Raises:
        ConfigError: The file is missing, a folder, unreadable, or no text.
    """
    place = str(path)
    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            message = "is too large for a config; data files are named inside it, under data.train"
            raise ConfigError([ConfigProblem(place, "", message)])
        data = path.read_bytes()
    except FileNotFoundError as error:
        message = f"there is no such file{_other_configs(path)}"
        raise ConfigError([ConfigProblem(place, "", message)]) from error
    except IsADirectoryError as error:
        message = f"is a folder; name the config file in it{_other_configs(path / 'config.yaml')}"
        raise ConfigError([ConfigProblem(place, "", message)]) from error
    except OSError as error:
        message = f"cannot be read ({error.strerror}); check the file and its permissions"
        raise ConfigError([ConfigProblem(place, "", message)]) from error
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        message = "is not UTF-8 text; a config is a YAML text file"
        raise ConfigError([ConfigProblem(f"{place}:{line}", "", message)]) from error
    if "\0" in text:
        message = "is a binary file; a config is a YAML text file"
        raise ConfigError([ConfigProblem(place, "", message)])
    return text


def _other_configs(path: Path) -> str:
    """A hint at the YAML files that do exist beside `path`."""
    names = (
        sorted(found.name for found in path.parent.glob("*.y*ml")) if path.parent.is_dir() else []
    )
    return f"; in {path.parent} there are {', '.join(names[:5])}" if names else ""


def syntax_problem(error: Exception, name: str) -> ConfigProblem:
    """What a YAML error means, with line and column where it has them."""
    if isinstance(error, RecursionError):
        return ConfigProblem(name, "", "values are nested too deep")
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    start = getattr(error, "context_mark", None)
    place = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
    said = str(error)
    text = next(
        (meaning for pattern, meaning in _MEANINGS if pattern in said),
        getattr(error, "problem", None) or said.splitlines()[0],
    )
    if start is not None and mark is not None and start.line != mark.line:
        text += f" (it began in line {start.line + 1})"
    return ConfigProblem(place, "", f"not valid YAML: {text}")
