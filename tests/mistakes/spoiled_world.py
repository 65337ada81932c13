"""A small world of data and config in which one thing goes wrong, and a mistake made there."""

import copy
import hashlib
import os
import random
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from ctr_pipeline.config.models import Config

CONFIG = {
    "data": {"train": "rows.csv", "label": "click"},
    "features": [
        {"columns": "price", "number": ["log", "standardize"]},
        {"columns": "city", "id": "vocabulary"},
    ],
    "model": {"embedding_dim": 2, "hidden_units": [4]},
    "train": {"epochs": 1, "batch_size": 64, "early_stopping": None},
    "output": "run",
}
HEADER = "click,price,city,user\n"


def lines(count: int = 300, seed: int = 0) -> list[str]:
    """Good rows, without the header."""
    chance = random.Random(seed)
    return [
        f"{int(chance.random() < 0.4)},{chance.randint(0, 99)},{chance.choice('abcdef')},u{n % 20}"
        for n in range(count)
    ]


@contextmanager
def good_world(folder: Path, monkeypatch: Any) -> Iterator["World"]:
    """The current folder, with good rows and a good config."""
    monkeypatch.chdir(folder)
    world = World(folder, monkeypatch)
    world.rows(lines())
    world.config()
    with world.mending():
        yield world


@dataclass
class World:
    """One folder with good rows and a good config, to be spoiled."""

    folder: Path
    monkeypatch: Any
    num_written: int = 0
    cleanups: list[Callable[[], None]] = field(default_factory=list)

    @contextmanager
    def mending(self) -> Iterator[None]:
        """Ends what goes wrong beside the files: patches, and limits of this process.

        pytest itself writes as soon as a test is over.
        """
        try:
            yield
        finally:
            while self.cleanups:
                self.cleanups.pop()()
            self.monkeypatch.undo()

    def write(self, name: str, content: str | bytes) -> None:
        """Writes a file."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)

    def rows(self, rows: list[str], name: str = "rows.csv", header: str = HEADER) -> None:
        """Writes rows."""
        self.write(name, header + "\n".join(rows) + "\n")
        # The time of a file tells whether its rows have changed since they were read.
        os.utime(self.folder / name, (10**9, 10**9 + self.num_written))
        self.num_written += 1

    def spoil_row(self, number: int, row: str) -> None:
        """Puts another row in the place of one, counted from 0."""
        rows = lines()
        rows[number] = row
        self.rows(rows)

    def parquet(self, name: str = "rows.parquet", **columns: Any) -> None:
        """Writes the rows as Parquet, with other columns in place of theirs."""
        parts = [row.split(",") for row in lines()]
        table: dict[str, Any] = {
            "click": [int(part[0]) for part in parts],
            "price": [float(part[1]) for part in parts],
            "city": [part[2] for part in parts],
        }
        pq.write_table(pa.table({**table, **columns}), self.folder / name)

    def config(self, **values: Any) -> None:
        """Writes the config with dotted keys set, written with two underscores: data__label."""
        config = copy.deepcopy(CONFIG)
        for key, value in values.items():
            node: Any = config
            *parents, last = key.split("__")
            for parent in parents:
                node = node.setdefault(parent, {})
            node[last] = value
        self.write("c.yaml", yaml.safe_dump(config, sort_keys=False))

    def model_file(self, body: str, name: str = "model.py") -> None:
        """Writes a custom model and a config that uses it."""
        self.write(name, "import keras\n" + body)
        self.config(model={"name": "custom", "embedding_dim": 2, "file": name})

    def contents(self) -> dict[str, str]:
        """Every file with a hash of its bytes, but for what may change.

        That is logs and locks, and what is computed again from rows that lie at another path: the
        cache and the statistics.
        """
        return {
            str(path.relative_to(self.folder)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(self.folder.rglob("*"))
            if path.is_file()
            and path.name not in {"run.log", ".lock", "statistics.json"}
            and "cache" not in path.parts
        }


JARGON = ("Traceback", "pydantic", "ArrowInvalid", "duckdb.", "errors.pydantic.dev", "<class")
RUN = ("run", "c.yaml")
CHECK = ("check", "c.yaml")
PREDICT = ("predict", "c.yaml", "--data", "new.csv", "--output", "p.parquet")
PREDICT_AGAIN = ("predict", "c.yaml", "--data", "rows.csv", "--output", "p.parquet")


_COMMAND = re.compile(
    r"'ctrpipe ([a-z-]+)((?: (?:CONFIG|--[a-z-]+))*)'(?: with (?:[a-z ]* and )?(--[a-z]+))?"
)
_OPTION = re.compile(r"(?<=[ ,])--(?:resume|overwrite)")
_GO_ON_OR_ANEW = ("--resume", "--overwrite")


def told_calls(message: str, call: tuple[str, ...]) -> list[tuple[str, ...]]:
    """The command lines that a message tells to give, and the call with each option it tells."""
    told: list[tuple[str, ...]] = []
    for command, words, option in _COMMAND.findall(message):
        options = [word for word in (*words.split(), option) if word not in {"", "CONFIG"}]
        if "--help" not in options and command != "--help":
            told.append((command, "c.yaml", *options))
    given = [word for word in call if word not in _GO_ON_OR_ANEW]
    told += [(*given, option) for option in _OPTION.findall(_COMMAND.sub("", message))]
    return told


_SETTING = re.compile(r"(?<!--)\b[Ss]et ((?:[a-z_]+\.)+[a-z_]+): ([^\s,;]+?)[.,;]?(?=\s|$)")
_LEFT_OUT = re.compile(r"\b[Ll]eave out ((?:[a-z_]+\.)+[a-z_]+)")


def told_settings(message: str) -> list[list[str]]:
    """What a message tells to set in the config: each way out as the values of `--set`."""
    ways = [
        [f"{key}={value}" for key, value in _SETTING.findall(way)]
        + [f"{key}=null" for key in _LEFT_OUT.findall(way)]
        for way in re.split(r"(?:,|;) or |; ", message)
    ]
    return [way for way in ways if way]


_KEY = re.compile(rf"\b(?:{'|'.join(Config.model_fields)})\.[a-z_]+")


def names_a_key(message: str) -> bool:
    """Whether the remedy of a message names a key of the config."""
    _, _, remedy = message.partition(". ")
    return bool(_KEY.search(remedy))


@dataclass(frozen=True)
class Case:
    """One mistake.

    Attributes:
        name: The test's name.
        spoil: Spoils the world.
        says: Texts that the message must hold: the place, what is wrong, the remedy.
        call: The command line.
        trained: Whether the run folder holds an earlier run.
        slow: Whether it takes seconds.
        followed: Whether the commands and options that the message tells are given, each in a world
            of its own, after which the call succeeds.
        unfollowed: Why they are not.
        tried: Values of `--set` that do what the message advises without saying the value.
        unset: Why the call fails all the same with what the message tells to set in the config, or
            why there is nothing to try.
    """

    name: str
    spoil: Callable[[World], object]
    says: tuple[str, ...]
    call: tuple[str, ...] = RUN
    trained: bool = False
    slow: bool = False
    followed: bool = False
    unfollowed: str = ""
    tried: tuple[str, ...] = ()
    unset: str = ""

    @property
    def overrides(self) -> list[str]:
        """What stands after `--set` in the command line."""
        return [after for word, after in pairwise(self.call) if word == "--set"]

    def check(self, message: str) -> None:
        """The message is clear: it says what it must, and nothing in the words of a library."""
        for text in self.says:
            assert text in message, message
        assert not [word for word in JARGON if word in message]
        tells = bool(told_calls(message, self.call))
        assert tells == (self.followed or bool(self.unfollowed)), message
        if not tells and not told_settings(message) and names_a_key(message):
            assert self.tried or self.unset, message


def nothing(world: World) -> None:
    """The call itself is wrong."""


def text(config: str | bytes) -> Callable[[World], None]:
    """The config is this text."""
    return lambda world: world.write("c.yaml", config)


def setting(**values: object) -> Callable[[World], None]:
    """The config has these values."""
    return lambda world: world.config(**values)


def entry(**values: object) -> Callable[[World], None]:
    """The config has this one feature."""
    return lambda world: world.config(features=[values])


def entries(*features: dict[str, object]) -> Callable[[World], None]:
    """The config has these features."""
    return lambda world: world.config(features=list(features))


def row(number: int, content: str) -> Callable[[World], None]:
    """The data has this row."""
    return lambda world: world.spoil_row(number, content)


def file(name: str, content: str | bytes) -> Callable[[World], None]:
    """There is this file."""
    return lambda world: world.write(name, content)


def model(body: str, name: str = "model.py") -> Callable[[World], None]:
    """The config has this custom model."""
    return lambda world: world.model_file(body, name)


def returning(value: str) -> Callable[[World], None]:
    """The custom model returns this."""
    return model(f"def build_model(inputs, options):\n    return {value}\n")
