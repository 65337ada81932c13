"""Entries of `features:` that name the same feature, merged key by key: later entries win.

`auto` among the entries, or `columns: "*"`, names every column that the config does not keep out;
what no entry says about such a column is decided from the statistics. A key given as null takes
away what earlier entries, or the statistics, say.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import ValidationError

from ctr_pipeline.config.models import FeatureEntry
from ctr_pipeline.config.ranges import ALL_COLUMNS

_IDENTITY = {"columns", "cross", "name"}


@dataclass(frozen=True)
class MergedEntry:
    """What all entries of a config say about one feature.

    Attributes:
        feature: Its name.
        entry: The keys that count, together.
        named_by: Places of the entries that name it, in order; at least one.
        given: The place of the entry whose value counts, by key that any of them gives.
        overruled: Places of entries whose value a later one replaces, by key.
        is_named: Whether an entry names it itself.
        decided: Whether the statistics decide what no entry says: an entry is about all columns.
        is_list: Whether the config has a list of entries.
    """

    feature: str
    entry: FeatureEntry
    named_by: tuple[int, ...]
    given: Mapping[str, int]
    overruled: Mapping[str, tuple[int, ...]]
    is_named: bool
    decided: bool
    is_list: bool = True

    @property
    def key(self) -> str:
        """The key path of the last entry that names it."""
        return self._path(self.named_by[-1])

    def key_of(self, name: str) -> str:
        """The key path of a key in the entry whose value counts; `key` if none gives it."""
        return f"{self._path(self.given[name])}.{name}" if name in self.given else self.key

    def _path(self, index: int) -> str:
        return f"features[{index}]" if self.is_list else "features"


def merge_entries(
    features: Literal["auto"] | Sequence[FeatureEntry], columns: Sequence[str] = ()
) -> dict[str, MergedEntry]:
    """What counts for each feature, in the order of first naming.

    Args:
        features: The value of `features:` in a config that was loaded.
        columns: The columns that `auto` means, in the order of the data; crosses are none.

    Raises:
        ValidationError: Keys of several entries contradict each other; a loaded config has none.
    """
    entries = (FeatureEntry(columns=ALL_COLUMNS),) if features == "auto" else tuple(features)
    return {
        feature: _merge(feature, entries, places, is_list=features != "auto")
        for feature, places in _places(entries, columns).items()
    }


def merge_problems(entries: Sequence[FeatureEntry]) -> list[tuple[int, str]]:
    """What is wrong with entries taken together: the place of an entry, and a sentence."""
    problems = []
    named = dict.fromkeys(
        name for entry in entries if not entry.names_all for name in entry.features
    )
    for feature, places in _places(entries, list(named)).items():
        last = max(index for index in places if not entries[index].names_all)
        try:
            merged = _merge(feature, entries, places)
        except ValidationError as error:
            reason = error.errors(include_url=False)[0]
            message = str(reason.get("ctx", {}).get("error", reason["msg"]))
            others = ", ".join(f"features[{index}]" for index in places if index != last)
            problems.append(
                (
                    last,
                    f"'{feature}', together with {others}: {message}; null takes an earlier "
                    f"entry's key away",
                )
            )
            continue
        if merged.entry.lacking is not None and not merged.decided:
            problems.append((last, merged.entry.lacking))
    return list(dict.fromkeys(problems))


def _places(entries: Sequence[FeatureEntry], columns: Sequence[str]) -> dict[str, list[int]]:
    """The places of the entries that name each feature; of `columns`, one for all names any."""
    crosses = {name for entry in entries if entry.cross is not None for name in entry.features}
    every = [name for name in columns if name not in crosses]
    places: dict[str, list[int]] = {}
    for index, entry in enumerate(entries):
        for feature in every if entry.names_all else entry.features:
            places.setdefault(feature, []).append(index)
    return places


def _merge(
    feature: str, entries: Sequence[FeatureEntry], places: Sequence[int], *, is_list: bool = True
) -> MergedEntry:
    values: dict[str, Any] = {}
    given: dict[str, int] = {}
    overruled: dict[str, tuple[int, ...]] = {}
    for index in places:
        entry = entries[index]
        for key in FeatureEntry.model_fields:
            if key not in entry.model_fields_set or key == "columns":
                continue
            if key in given and key not in _IDENTITY:
                overruled[key] = (*overruled.get(key, ()), given[key])
            values[key] = getattr(entry, key)
            given[key] = index
    if values.get("cross") is None:
        values["columns"] = feature
    return MergedEntry(
        feature=feature,
        entry=FeatureEntry.model_validate(values),
        named_by=tuple(places),
        given={key: index for key, index in given.items() if key not in _IDENTITY},
        overruled=overruled,
        is_named=any(not entries[index].names_all for index in places),
        decided=any(entries[index].names_all for index in places),
        is_list=is_list,
    )
