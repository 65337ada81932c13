"""The table of value counts of one column, and its rows as other queries read them."""

from functools import cache

from sqlglot import exp, parse_one

from ctr_pipeline.analysis.chains import build_step, placeholder_prefix
from ctr_pipeline.analysis.sql import (
    OTHER_COUNTS,
    PART_COUNTS,
    TABLE,
    WEIGHTS,
    Chains,
    Query,
    count_columns,
    count_sums,
    largest_float,
    named,
    size_column,
    value_column,
    weight_if,
    whole_sum,
)
from ctr_pipeline.analysis.statistics_plan import Chain
from ctr_pipeline.specs.columns import ColumnType
from ctr_pipeline.transforms.base import CountedText, TextTransform, Transform
from ctr_pipeline.transforms.shared.sql import double


@cache
def value_counts_query(column_type: ColumnType, *, weighted: bool = False) -> Query:
    """Makes the table of value counts of one column. NULL, '' and NaN are still apart in it.

    Numbers ascend, so that sums over them have the same bits whatever the order of the rows;
    quantiles take as much less time as sorting takes here.

    With weights it has the columns `weight` and `click_weight` as well: what the rows of a value
    weigh, and what those of label 1 do.
    """
    # Temporary, so that several sessions of one database have one each.
    temporary = exp.Properties(expressions=[exp.TemporaryProperty()])
    counts = counts_of_parts(weighted=weighted)
    if column_type is ColumnType.NUMBER:
        counts = counts.order_by(value_column())
    return Query(
        exp.Create(this=exp.to_table(TABLE), kind="TABLE", properties=temporary, expression=counts)
    )


def counts_of_parts(*, weighted: bool = False) -> exp.Select:
    """Value counts of one column, from what each part says of it."""
    return (
        exp.select(value_column(), *count_sums(weighted))
        .from_(PART_COUNTS)
        .group_by(value_column())
    )


@cache
def drop_query() -> Query:
    """Removes the table of value counts, if it is there."""
    return Query(parse_one("DROP TABLE IF EXISTS value_counts"))


@cache
def weights_query() -> Query:
    """What all rows of a text column weigh and those of label 1, and both of the missing ones."""
    missing = exp.Is(this=value_column(), expression=exp.null())
    return Query(
        exp.select(
            *(named(exp.Sum(this=exp.column(name)), f"total_{name}") for name in WEIGHTS),
            *(named(weight_if(name, missing), f"missing_{name}") for name in WEIGHTS),
        ).from_(cleaned_counts(ColumnType.TEXT, weighted=True))
    )


def cleaned_counts(
    column_type: ColumnType, table: str = TABLE, *, weighted: bool = False
) -> exp.Expr:
    """Value counts with every kind of missing value as NULL."""
    if column_type is ColumnType.TEXT:
        value: exp.Expr = exp.Nullif(this=value_column(), expression=exp.Literal.string(""))
    else:
        value = exp.Case().when(exp.IsNan(this=value_column()), exp.null()).else_(value_column())
    columns = count_columns(weighted)
    if table == OTHER_COUNTS:
        columns = [exp.column("sample"), exp.column("num_rows")]
    return exp.select(named(value, "value"), *columns).from_(table).subquery("cleaned")


def finite_values(chains: Chains, *, weighted: bool = False) -> exp.Expr:
    """A row for each value: itself and, after each chain, `value0` and so on; NULL if not finite.

    All chains are of numbers, or all begin with the same transform of texts.
    """
    starts = {chain[0] for chain in chains if chain and chain[0].kind.takes_text}
    if len(starts) > 1 or (starts and not all(chain[:1] == (*starts,) for chain in chains)):
        raise ValueError("chains of one query begin alike")
    names = [f"value{place}" for place in range(len(chains))]
    counts = [column.name for column in count_columns(weighted)]
    numbers = cleaned_counts(ColumnType.NUMBER, weighted=weighted)
    for start in starts:
        numbers = _numbers_of_texts(start, weighted=weighted)
    kept = [exp.column(name) for name in ("value", *counts)]
    rows: exp.Expr = (
        exp.select(*kept, *(named(value_column(), name) for name in names))
        .from_(numbers)
        .subquery("step")
    )
    # A step of all chains at a time, each in a query of its own, or a long chain would repeat
    # what stands before.
    for position in range(len(starts), max(map(len, chains))):
        values: list[exp.Expr] = []
        for place, (name, chain) in enumerate(zip(names, chains, strict=True)):
            value: exp.Expr = exp.column(name)
            if position < len(chain):
                step = build_step(value, chain[position], placeholder_prefix(place, position))
                value = named(step, name)
            values.append(value)
        rows = exp.select(*kept, *values).from_(rows).subquery("step")
    values = [
        named(
            exp.Case().when(
                exp.LTE(this=exp.Abs(this=exp.column(name)), expression=largest_float()),
                exp.column(name),
            ),
            name,
        )
        for name in names
    ]
    return exp.select(*kept, *values).from_(rows).subquery("finite")


def _numbers_of_texts(transform: Transform, *, weighted: bool) -> exp.Expr:
    """What a transform makes of the texts, from their counts; NULL is a missing value."""
    # NULL and '' are one value here.
    texts = (
        exp.select(value_column(), *count_sums(weighted))
        .from_(cleaned_counts(ColumnType.TEXT, weighted=weighted))
        .group_by(value_column())
        .subquery("texts")
    )
    if not isinstance(transform, TextTransform) or not transform.has_sql:
        raise ValueError(f"'{transform.name}' has no number as its result")
    number = transform.sql_of_counts(
        CountedText(
            text=value_column(),
            num_rows=exp.column("num_rows"),
            rows=_in_rows(size_column(weighted), weighted=weighted),
            clicks=_in_rows("click_weight" if weighted else "num_clicks", weighted=weighted),
            base=_click_rate(weighted=weighted).subquery(),
            weighs=exp.GT(this=exp.column("weight"), expression=double(0.0)) if weighted else None,
        )
    )
    return (
        exp.select(named(number, "value"), *count_columns(weighted))
        .from_(texts)
        .subquery("numbers")
    )


def _in_rows(column: str, *, weighted: bool) -> exp.Expr:
    """Rows as a float; of a weight, as many rows as would weigh as much, were all alike."""
    number = exp.cast(exp.column(column), "double")
    if not weighted:
        return number
    rows = exp.cast(whole_sum(exp.column("num_rows")), "double")
    a_row = exp.Div(this=exp.Sum(this=exp.column("weight")), expression=rows)
    return exp.Div(
        this=number, expression=exp.select(named(a_row, "weight_of_a_row")).from_(TABLE).subquery()
    )


def _click_rate(*, weighted: bool) -> exp.Select:
    names = reversed(WEIGHTS) if weighted else ("num_clicks", "num_rows")
    clicks, rows = (exp.Sum(this=exp.cast(exp.column(name), "double")) for name in names)
    rate = exp.Div(this=clicks, expression=rows)
    return exp.select(named(rate, "rate")).from_(TABLE)


def grouped_values(chain: Chain) -> exp.Expr:
    """Finite values after a chain, each once: transforms such as clip make values equal."""
    value = exp.column("value0")
    rows = (
        exp.select(named(value, "value"), named(value_column(), "source"), exp.column("num_rows"))
        .from_(finite_values((chain,)))
        .where(exp.Not(this=exp.Is(this=value.copy(), expression=exp.null())))
        .subquery("present")
    )
    if not chain:
        return rows
    return (
        exp.select(
            value_column(),
            named(exp.Min(this=exp.column("source")), "source"),
            named(whole_sum(exp.column("num_rows")), "num_rows"),
        )
        .from_(rows)
        .group_by(value_column())
        .subquery("grouped")
    )


def has_small_answer(chains: Chains, *, weighted: bool) -> bool:
    """Whether `small_counts` has an answer: it knows neither weights nor transforms of texts."""
    return not weighted and not any(step.kind.takes_text for chain in chains for step in chain)
