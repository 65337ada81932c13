"""What every mapping of the YAML is, and what holds of a key beside its type.

A field carries marks in its annotation, `epochs: Annotated[int, MAY_CHANGE]`; a mark on a section
holds for all keys below it.
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, TypeVar, Union

from pydantic import BaseModel, ConfigDict, Field, model_validator

S = TypeVar("S", bound="Section")
M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True)
class NotSearched:
    """`tune` may not vary the key.

    Attributes:
        reason: The end of a message to whoever tries.
    """

    reason: str


@dataclass(frozen=True)
class MayChange:
    """The key may change between the start of a run and its resumption.

    Attributes:
        from_step_on: The steps that are trained from then on follow it; those that were trained
            rest on what it was. So what has been trained to its end is of the earlier value.
    """

    from_step_on: bool = False


@dataclass(frozen=True)
class OfFiles:
    """The key says how files are read: those of new rows may be of another kind."""


@dataclass(frozen=True)
class IsPath:
    """The value names files; the same files may have another name on another machine."""


@dataclass(frozen=True)
class ServersOnly:
    """The key has no meaning with `runtime.strategy: allreduce`."""


@dataclass(frozen=True)
class LayerWidths:
    """The value is the widths of layers, each connected with all units of the one before.

    Attributes:
        on_inputs: The first layer is connected with all inputs of the model.
    """

    on_inputs: bool = False


MAY_CHANGE = MayChange()
MAY_CHANGE_FROM_STEP_ON = MayChange(from_step_on=True)
OF_FILES = OfFiles()
IS_PATH = IsPath()
SERVERS_ONLY = ServersOnly()
NO_MODEL = NotSearched("does not change what a model learns")


class Section(BaseModel):
    """A mapping of the YAML; unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _complete_from_defaults(cls, given: Any) -> Any:
        """Gives a mapping that lacks required keys, such as an optimizer's name, the default's.

        So `train.optimizer.learning_rate` alone changes the default optimizer's rate.
        """
        if not isinstance(given, dict):
            return given
        completed = dict(given)
        for key, field in cls.model_fields.items():
            value, default = given.get(key), field.default
            if isinstance(value, dict) and isinstance(default, Section):
                completed[key] = _completed(value, default)
        return completed

    def part(self, kind: type[S]) -> S:
        """The keys that one of its bases declares, alone."""
        return kind(**{key: getattr(self, key) for key in kind.model_fields})


def _completed(given: dict[str, Any], default: Section, *, fill: bool = False) -> dict[str, Any]:
    """What is given, completed by the default where a required key is absent from it.

    Args:
        given: A mapping of the YAML.
        fill: Whether all that is absent is taken from the default, as inside a completed mapping.
    """
    fields = type(default).model_fields
    lacks = any(field.is_required() and key not in given for key, field in fields.items())
    # One that names another optimizer does not begin with this one's learning rate.
    fill = (fill or lacks) and "name" not in given
    completed = {**(default.model_dump(exclude_unset=True) if fill else {}), **given}
    if isinstance(default, NamedSection):
        # Of several kinds, the default one is meant.
        completed.setdefault("name", default.name)
    for key in fields:
        inner = getattr(default, key)
        if isinstance(given.get(key), dict) and isinstance(inner, Section):
            completed[key] = _completed(given[key], inner, fill=fill)
    return completed


class NamedSection(Section):
    """One of several kinds of a section, told apart by their `name`.

    A kind is a subclass that gives `name` its value, as `Literal["cosine"]`, and has its own keys.
    """

    noun: ClassVar[str]
    """What all kinds are, for messages."""

    name: str

    @model_validator(mode="before")
    @classmethod
    def _leave_out_defaults_of_others(cls, given: Any) -> Any:
        """Leaves out keys of other kinds that say no more than those kinds' defaults do.

        A resolved config spells out every key, and may be given another name afterwards.
        """
        if not isinstance(given, dict):
            return given
        others = kinds_of(cls._family()).values()
        return {
            key: value
            for key, value in given.items()
            if key in cls.model_fields
            or not any(
                key in other.model_fields and other.model_fields[key].default == value
                for other in others
            )
        }

    @classmethod
    def _family(cls) -> "type[NamedSection]":
        """The class whose subclasses are the kinds."""
        return next(one for one in cls.__mro__ if NamedSection in one.__bases__)


def kinds_of(family: type[M]) -> dict[str, type[M]]:
    """Returns the subclasses that give `name` a value, by it, in the order of their definitions."""
    found: dict[str, type[M]] = {}
    for one in family.__subclasses__():
        if isinstance(name := one.model_fields["name"].default, str):
            found[name] = one
        found |= kinds_of(one)
    return found


def union_of(family: type[BaseModel]) -> Any:
    """Returns the union of these subclasses, told apart by their names."""
    return Annotated[Union[tuple(kinds_of(family).values())], Field(discriminator="name")]  # noqa: UP007
