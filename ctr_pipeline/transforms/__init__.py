"""Every transform: one file each, with its options, fit, SQL and kernel.

A file of this package that holds a subclass of `Transform` is a transform; there is no other list.
"""

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, TypeAlias

from ctr_pipeline.specs.section import kinds_of, union_of
from ctr_pipeline.transforms.base import (
    IdStep,
    NumberStep,
    TextStep,
    Transform,
    TransformKind,
)

for _module in iter_modules(__path__):
    if not _module.ispkg:
        import_module(f"{__name__}.{_module.name}")


_KINDS = tuple(TransformKind)
TRANSFORMS: dict[str, type[Transform]] = dict(
    sorted(
        kinds_of(Transform).items(),
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
