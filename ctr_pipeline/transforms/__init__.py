"""Every transform: one file each, with its options, fit, SQL and kernel.

A file of this package that holds a subclass of `Transform` is a transform; there is no other list.
"""

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, Union

from pydantic import Field

from ctr_pipeline.transforms.base import (
    IdStep,
    NumberStep,
    Step,
    TextStep,
    Transform,
    TransformKind,
)

for _module in iter_modules(__path__):
    if not _module.ispkg:
        import_module(f"{__name__}.{_module.name}")


def _named(base: type[Any]) -> dict[str, type[Any]]:
    """Returns the subclasses of `base` with a name, by it."""
    found = {}
    waiting = [base]
    while waiting:
        one = waiting.pop()
        waiting += one.__subclasses__()
        if isinstance(name := one.model_fields["name"].default, str):
            found[name] = one
    return found


def union_of(base: type[Step] | type[Transform]) -> Any:
    """Returns the union of the subclasses of `base`, told apart by their names."""
    return Annotated[Union[tuple(_named(base).values())], Field(discriminator="name")]  # noqa: UP007


_KINDS = tuple(TransformKind)
TRANSFORMS: dict[str, type[Transform]] = dict(
    sorted(
        _named(Transform).items(),
        key=lambda item: (_KINDS.index(item[1].kind), item[1].rank, item[0]),
    )
)
"""Every transform by its YAML name: by kind, and in the order of a chain."""

if TYPE_CHECKING:
    AnyTransform: TypeAlias = Transform
    AnyNumberStep: TypeAlias = NumberStep
    AnyTextStep: TypeAlias = TextStep
    AnyIdStep: TypeAlias = IdStep
else:
    AnyTransform = union_of(Transform)
    AnyNumberStep = union_of(NumberStep)
    AnyTextStep = union_of(TextStep)
    AnyIdStep = union_of(IdStep)
