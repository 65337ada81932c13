"""Whether a feature's chains of transforms make sense, told without any statistics."""

from ctr_pipeline.features import FeatureSpec
from ctr_pipeline.specs.columns import ColumnType
from ctr_pipeline.transforms import AnyTransform
from ctr_pipeline.transforms.base import IdTransform, TransformKind


def check_chain(spec: FeatureSpec) -> list[str]:
    """Everything wrong with a feature's chains: one sentence each, naming feature and remedy."""
    problems = []
    if spec.number is not None:
        problems += _number_problems(spec, spec.number)
    if spec.id is not None:
        problems += _id_problems(spec, spec.id)
    for transform in (*(spec.number or ()), *(spec.id or ())):
        problems += [
            f"feature '{spec.column}': {problem}" for problem in transform.option_problems()
        ]
    if spec.cross is not None and any(
        isinstance(transform, IdTransform) and transform.num_fields > 1
        for transform in spec.id or ()
    ):
        problems.append(
            f"feature '{spec.column}': a cross is hashed by one function. Leave `functions` out"
        )
    return problems


def _number_problems(spec: FeatureSpec, chain: tuple[AnyTransform, ...]) -> list[str]:
    place = f"feature '{spec.column}'"
    if spec.vector is not None:
        # The config takes steps from number to number alone.
        return []
    if spec.column_type is ColumnType.TEXT and not (chain and chain[0].kind.takes_text):
        return [
            f"{place}: its column is text, and a `number` chain reads numbers. "
            f"Begin it with count_encode, target_encode or age, use `id` with vocabulary or hash, "
            f"or `type: numeric` if its values are numbers"
        ]
    problems = [
        f"{place}: '{transform.name}' gives an id and cannot stand in a `number` "
        f"chain. Move it to `id`"
        for transform in chain
        if transform.kind.gives_id
    ]
    return problems + [
        _misplaced_reader(spec, transform)
        for position, transform in enumerate(chain)
        if transform.kind is TransformKind.TEXT_TO_NUMBER
        and (position > 0 or spec.column_type is ColumnType.NUMBER)
    ]


def _id_problems(spec: FeatureSpec, chain: tuple[AnyTransform, ...]) -> list[str]:
    place = f"feature '{spec.column}'"
    if not chain:
        return [
            f"{place}: its `id` chain is empty. Add a transform that gives an id, or leave `id` out"
        ]
    problems = []
    first = chain[0]
    if spec.column_type is ColumnType.TEXT and not first.kind.takes_text:
        return [
            f"{place}: '{transform.name}' reads a number, and the column is text. "
            f"Use vocabulary or hash, or `type: numeric` if its values are numbers"
            for transform in chain
            if not transform.kind.takes_text
        ]
    if first.kind is TransformKind.TEXT_TO_ID and spec.column_type is ColumnType.TEXT:
        return (
            [
                f"{place}: '{first.name}' ends an `id` chain, and '{chain[1].name}' follows it. "
                f"Keep one of the two"
            ]
            if len(chain) > 1
            else []
        )
    for position, transform in enumerate(chain):
        last = position == len(chain) - 1
        reads_the_column = position == 0 and spec.column_type is ColumnType.TEXT
        if transform.kind.takes_text and not reads_the_column:
            problems.append(_misplaced_reader(spec, transform))
        elif transform.kind.gives_id and not last:
            problems.append(
                f"{place}: '{transform.name}' gives an id, and '{chain[position + 1].name}' cannot "
                f"follow it. Put '{transform.name}' last"
            )
        elif not transform.kind.gives_id and last:
            problems.append(
                f"{place}: its `id` chain ends in '{transform.name}', which gives a number. "
                f"Add bucketize, log_round or round_identity, or move the chain to `number`"
            )
    return problems


def _misplaced_reader(spec: FeatureSpec, transform: AnyTransform) -> str:
    """What to do about a transform of text that does not stand first, over a text column."""
    place = f"feature '{spec.column}'"
    if spec.column_type is ColumnType.TEXT:
        return (
            f"{place}: '{transform.name}' reads the text of the column, and stands after "
            f"another transform. Put it first, and keep one such transform"
        )
    return (
        f"{place}: '{transform.name}' reads text, and the column is a number. "
        f"Use bucketize, log_round or round_identity, or `type: categorical` to read the "
        f"column as text"
    )
