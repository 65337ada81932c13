"""The queries of the statistics as syntax trees; pure, rendered per dialect at the edge.

One query per column adds up `part_counts`, what each part of the training rows says of it, and
leaves the table `value_counts` with the columns `value`, `num_rows` and `num_clicks`. All others
read that table. Numbers that differ from column to column are placeholders, so that a query is
built and rendered once for its shape.
"""

from collections.abc import Mapping, Sequence
from functools import cache

from sqlglot import exp, parse_one

from ctr_pipeline.analysis import small_counts
from ctr_pipeline.analysis.chains import build_step, placeholder_prefix
from ctr_pipeline.analysis.statistics_plan import Chain
from ctr_pipeline.features import SequenceSpec, VectorSpec
from ctr_pipeline.specs.columns import ColumnType
from ctr_pipeline.summary_statistics.registry import NUMBER_STATISTICS
from ctr_pipeline.transforms.base import Transform
from ctr_pipeline.transforms.count_encode import CountEncode
from ctr_pipeline.transforms.target_encode import TargetEncode

PART_COUNTS = "part_counts"
OTHER_COUNTS = "other_counts"
TABLE = "value_counts"
_COUNTS = ("num_rows", "num_clicks")
_WEIGHTS = ("weight", "click_weight")
Chains = tuple[Chain, ...]


class Query:
    """A syntax tree that remembers what it looks like in each dialect.

    Args:
        tree: The tree.
        answer: Gives the same rows of a small column without a database; None if nothing does.
    """

    def __init__(self, tree: exp.Expr, answer: small_counts.Answer | None = None) -> None:
        self.tree = tree
        self.answer = answer
        self._rendered: dict[str, str] = {}

    def render(self, dialect: str = "duckdb") -> str:
        """The SQL text, with named placeholders."""
        if dialect not in self._rendered:
            self._rendered[dialect] = self.tree.sql(dialect=dialect)
        return self._rendered[dialect]

    def bind(
        self, parameters: Mapping[str, float | str], tables: Mapping[str, exp.Table]
    ) -> exp.Expr:
        """The tree for an engine without placeholders and temporary tables.

        Args:
            parameters: By placeholder; a number becomes its shortest exact text, which the cast
                around every placeholder turns back into the same number.
            tables: Replacements of tables by name.
        """

        def replace(node: exp.Expr) -> exp.Expr:
            if isinstance(node, exp.Placeholder):
                value = parameters[node.name]
                if isinstance(value, str):
                    return exp.Literal.string(value)
                return exp.Literal.string(
                    repr(float(value)) if isinstance(value, float) else str(int(value))
                )
            if isinstance(node, exp.Table) and node.name in tables:
                table = tables[node.name].copy()
                alias = node.args.get("alias")
                table.set("alias", alias and alias.copy())
                return table
            return node

        return self.tree.transform(replace)


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
        counts = counts.order_by(_value())
    return Query(
        exp.Create(this=exp.to_table(TABLE), kind="TABLE", properties=temporary, expression=counts)
    )


def counts_of_parts(*, weighted: bool = False) -> exp.Select:
    """Value counts of one column, from what each part says of it."""
    return exp.select(_value(), *_sums(weighted)).from_(PART_COUNTS).group_by(_value())


@cache
def drop_query() -> Query:
    """Removes the table of value counts, if it is there."""
    return Query(parse_one("DROP TABLE IF EXISTS value_counts"))


@cache
def lengths_query(sequence: SequenceSpec) -> Query:
    """Rows and clicks by number of elements, from the value counts of whole texts."""
    element = exp.to_identifier("element")
    is_element = exp.NEQ(
        this=_element_value(exp.column("element"), sequence), expression=exp.Literal.string("")
    )
    elements = exp.ArrayFilter(
        this=_split(sequence), expression=exp.Lambda(this=is_element, expressions=[element])
    )
    length = exp.Coalesce(this=exp.ArraySize(this=elements), expressions=[_integer(0)])
    lengths = exp.select(
        _as(length, "length"), exp.column("num_rows"), exp.column("num_clicks")
    ).from_(TABLE)
    return Query(
        exp.select(
            exp.column("length"),
            _as(_sum(exp.column("num_rows")), "num_rows"),
            _as(_sum(exp.column("num_clicks")), "num_clicks"),
        )
        .from_(lengths.subquery("lengths"))
        .group_by(exp.column("length"))
        .order_by(exp.column("length"))
    )


@cache
def element_counts_query(sequence: SequenceSpec, *, weighted: bool = False) -> Query:
    """Makes the table `element_counts`: as `value_counts`, for the elements of texts."""
    split = exp.select(
        _as(exp.Explode(this=_split(sequence)), "element"), *_counts(weighted)
    ).from_(TABLE)
    values = exp.select(
        _as(_element_value(exp.column("element"), sequence), "value"), *_counts(weighted)
    ).from_(split.subquery("split_texts"))
    counts = (
        exp.select(_value(), *_sums(weighted))
        .from_(values.subquery("elements"))
        .where(exp.NEQ(this=_value(), expression=exp.Literal.string("")))
        .group_by(_value())
    )
    temporary = exp.Properties(expressions=[exp.TemporaryProperty()])
    return Query(
        exp.Create(
            this=exp.to_table("element_counts"),
            kind="TABLE",
            properties=temporary,
            expression=counts,
        )
    )


@cache
def rows_without_query() -> Query:
    """Rows without a text and their clicks, from the value counts of whole texts."""
    is_empty = exp.Or(
        this=exp.Is(this=_value(), expression=exp.null()),
        expression=exp.EQ(this=_value(), expression=exp.Literal.string("")),
    )
    return Query(
        exp.select(
            _as(_sum_if("num_rows", exp.Paren(this=is_empty)), "num_missing"),
            _as(_sum_if("num_clicks", exp.Paren(this=is_empty)), "missing_clicks"),
        ).from_(TABLE)
    )


@cache
def number_counts_query(vector: VectorSpec, *, weighted: bool = False) -> Query:
    """Makes the table `element_counts`: as `value_counts`, for the numbers of vectors, float64."""
    split = exp.Split(this=_value(), expression=exp.Literal.string(vector.delimiter))
    texts = exp.select(_as(exp.Explode(this=split), "element"), *_counts(weighted)).from_(TABLE)
    number = exp.TryCast(this=exp.column("element"), to=exp.DataType.build("double"))
    numbers = exp.select(_as(number, "value"), *_counts(weighted)).from_(
        texts.subquery("split_texts")
    )
    counts = (
        exp.select(_value(), *_sums(weighted))
        .from_(numbers.subquery("numbers"))
        .where(exp.Not(this=exp.Is(this=_value(), expression=exp.null())))
        .group_by(_value())
        .order_by(_value())
    )
    temporary = exp.Properties(expressions=[exp.TemporaryProperty()])
    return Query(
        exp.Create(
            this=exp.to_table("element_counts"),
            kind="TABLE",
            properties=temporary,
            expression=counts,
        )
    )


@cache
def rename_elements_query() -> Query:
    """Puts `element_counts` in the place of `value_counts`, which is gone."""
    return Query(parse_one("ALTER TABLE element_counts RENAME TO value_counts", read="duckdb"))


def _split(sequence: SequenceSpec) -> exp.Expr:
    return exp.Split(this=_value(), expression=exp.Literal.string(sequence.delimiter))


def _element_value(element: exp.Expr, sequence: SequenceSpec) -> exp.Expr:
    """An element without its weight."""
    if not sequence.weights:
        return element
    mark = sequence.weight_mark
    return exp.RegexpReplace(
        this=element,
        expression=exp.Literal.string(f"{mark}[^{mark}]*$"),
        replacement=exp.Literal.string(""),
    )


@cache
def weights_query() -> Query:
    """What all rows of a text column weigh and those of label 1, and both of the missing ones."""
    missing = exp.Is(this=_value(), expression=exp.null())
    return Query(
        exp.select(
            *(_as(exp.Sum(this=exp.column(name)), f"total_{name}") for name in _WEIGHTS),
            *(_as(_weight_if(name, missing), f"missing_{name}") for name in _WEIGHTS),
        ).from_(_cleaned(ColumnType.TEXT, weighted=True))
    )


@cache
def summary_query(column_type: ColumnType, chains: Chains = (), *, weighted: bool = False) -> Query:
    """Missing rows and their clicks, infinite rows, distinct values; of numbers, ranges as well.

    Args:
        chains: Chains of numbers for which `range_query` is needed too. One scan gives both.
        weighted: As in `range_query`.
    """
    missing = exp.Is(this=_value(), expression=exp.null())
    infinite: exp.Expr = exp.false()
    if column_type is ColumnType.NUMBER:
        infinite = exp.GT(this=exp.Abs(this=_value()), expression=_largest())
    rows = _finite(chains, weighted=weighted) if chains else _cleaned(column_type)
    return Query(
        exp.select(
            _as(_sum_if("num_rows", missing), "num_missing"),
            _as(_sum_if("num_clicks", missing), "missing_clicks"),
            _as(_sum_if("num_rows", infinite), "num_infinite"),
            _as(exp.Count(this=_value()), "num_distinct"),
            *_ranges(len(chains), weighted=weighted),
        ).from_(rows),
        small_counts.summarize(chains)
        if column_type is ColumnType.NUMBER and _is_of_numbers(chains, weighted=weighted)
        else None,
    )


@cache
def range_query(chains: Chains, *, weighted: bool = False) -> Query:
    """Finite rows after each chain, smallest and largest value; with weights, what they weigh."""
    ranges = _ranges(len(chains), weighted=weighted)
    return Query(
        exp.select(*ranges).from_(_finite(chains, weighted=weighted)),
        small_counts.find_ranges(chains) if _is_of_numbers(chains, weighted=weighted) else None,
    )


def _is_of_numbers(chains: Chains, *, weighted: bool) -> bool:
    """Whether `small_counts` has an answer: it knows neither weights nor transforms of texts."""
    return not weighted and not any(step.kind.takes_text for chain in chains for step in chain)


def _ranges(num_chains: int, *, weighted: bool) -> list[exp.Expr]:
    columns: list[exp.Expr] = []
    for place in range(num_chains):
        value = exp.column(f"value{place}")
        finite = exp.Not(this=exp.Is(this=value, expression=exp.null()))
        columns += [
            _as(_sum_if("num_rows", finite), f"num_rows{place}"),
            _as(exp.Min(this=value.copy()), f"minimum{place}"),
            _as(exp.Max(this=value.copy()), f"maximum{place}"),
        ]
        if weighted:
            columns.append(_as(_weight_if("weight", finite), f"weight{place}"))
    return columns


@cache
def mean_query(chains: Chains, *, weighted: bool = False) -> Query:
    """Sum of value times $shrink after each chain, over rows or what they weigh.

    Placeholders end in the chain's place: $shrink0 and so on.
    """
    totals = []
    for place in range(len(chains)):
        value = exp.column(f"value{place}")
        term = exp.Mul(this=value, expression=_number(f"shrink{place}"))
        totals.append(_as(_sum_over(term, _size(weighted)), f"total{place}"))
    return Query(
        exp.select(*totals).from_(_finite(chains, weighted=weighted)),
        small_counts.add_values(chains) if _is_of_numbers(chains, weighted=weighted) else None,
    )


@cache
def central_query(
    chains: Chains, *, weighted: bool = False, summarized: int | None = None
) -> Query:
    """Sums of y and y^2 after each chain, over rows or what they weigh.

    y = (value * $shrink - $center) * $stretch. Placeholders end in the chain's place: $shrink0 and
    so on.

    Args:
        summarized: The place of the chain whose y the terms of `NUMBER_STATISTICS` are of, which
            come after all others; None: of none.
    """
    size = _size(weighted)
    terms, sums = [], []
    for place in range(len(chains)):
        value = exp.column(f"value{place}")
        centered = exp.Sub(
            this=exp.Mul(this=value, expression=_number(f"shrink{place}")),
            expression=_number(f"center{place}"),
        )
        y = exp.Mul(this=exp.Paren(this=centered), expression=_number(f"stretch{place}"))
        terms.append(_as(y, f"y{place}"))
        deviation = exp.column(f"y{place}")
        sums.append(_as(_sum_over(deviation, size), f"sum{place}"))
        sums.append(_as(_sum_over(deviation * deviation, size), f"squares{place}"))
    if summarized is not None:
        deviation = exp.column(f"y{summarized}")
        sums += [
            _as(_sum_over(term(deviation), size), f"{one.name}{number}")
            for one in NUMBER_STATISTICS
            for number, term in enumerate(one.terms)
        ]
    rows = exp.select(*terms, exp.column(size)).from_(_finite(chains, weighted=weighted))
    return Query(
        exp.select(*sums).from_(rows.subquery("terms")),
        small_counts.add_powers(chains, summarized)
        if _is_of_numbers(chains, weighted=weighted)
        else None,
    )


@cache
def largest_counts_query(chain: Chain, num_values: int) -> Query:
    """Rows of the most frequent finite values after a chain, descending."""
    counts = exp.select(exp.column("num_rows")).from_(_grouped(chain))
    most_first = exp.Ordered(this=exp.column("num_rows"), desc=True)
    return Query(
        counts.order_by(most_first).limit(num_values),
        small_counts.find_largest(chain, num_values)
        if _is_of_numbers((chain,), weighted=False)
        else None,
    )


@cache
def quantile_query(chain: Chain, num_sets: int = 1) -> Query:
    """Values where the cumulative count reaches i/$num_quantiles of $total, for any i.

    Quantile i of n over N values is the smallest value whose cumulative count c has n c >= i N
    (definition 1 of Hyndman and Fan, The American Statistician 50 (1996); `inverted_cdf` in numpy),
    here in whole numbers. Values of at least $heavy rows are heavy and count as none. A row says
    that the quantiles `first_quantile` to `last_quantile` are its value, none if the first is
    above the last; `is_edge` is not 0 for a heavy value and for the value that follows one;
    `source` is a value of the column before the chain.

    Args:
        chain: Transforms before.
        num_sets: For how many n; $num_quantiles0, $total0 and $heavy0 are those of the first, whose
            columns are `first_quantile0` and so on.
    """
    names = ["value", "source"]
    weighed, running, reached, wanted = [], [], [], []
    for place in range(num_sets):
        is_heavy = exp.GTE(this=exp.column("num_rows"), expression=_whole(f"heavy{place}"))
        light = exp.Case().when(is_heavy, _integer(0)).else_(exp.column("num_rows"))
        heavy = exp.Case().when(is_heavy.copy(), _integer(1)).else_(_integer(0))
        weighed += [_as(light, f"light{place}"), _as(heavy, f"heavy{place}")]
        upto = _sum_over_rows(f"light{place}", "UNBOUNDED")
        edge = _sum_over_rows(f"heavy{place}", _integer(1))
        running += [exp.column(f"light{place}"), _as(upto, f"upto{place}")]
        running.append(_as(edge, f"is_edge{place}"))
        count = exp.column(f"upto{place}")
        before = exp.Paren(this=exp.Sub(this=count, expression=exp.column(f"light{place}")))
        first = exp.Add(this=_quantiles_reached(before, place), expression=_integer(1))
        last = _quantiles_reached(count.copy(), place)
        ends = [exp.column(f"{end}_quantile{place}") for end in ("first", "last")]
        is_edge = exp.column(f"is_edge{place}")
        reached += [_as(first, ends[0].name), _as(last, ends[1].name), is_edge]
        names += [*(end.name for end in ends), is_edge.name]
        wanted += [
            exp.LTE(this=ends[0], expression=ends[1]),
            exp.GT(this=is_edge.copy(), expression=_integer(0)),
        ]
    kept = [_value(), exp.column("source")]
    rows = exp.select(*kept, *weighed).from_(_grouped(chain)).subquery("weighed")
    rows = exp.select(*kept, *running).from_(rows).subquery("cumulative")
    rows = exp.select(*kept, *reached).from_(rows).subquery("reached")
    columns = [exp.column(name) for name in names]
    return Query(
        exp.select(*columns).from_(rows).where(exp.or_(*wanted)).order_by(_value()),
        small_counts.find_quantiles(chain, num_sets)
        if _is_of_numbers((chain,), weighted=False)
        else None,
    )


def _sum_over_rows(column: str, num_before: str | exp.Expr) -> exp.Expr:
    """The sum over so many rows of smaller values and the row itself."""
    over = exp.Window(
        this=exp.Sum(this=exp.column(column)),
        order=exp.Order(expressions=[exp.Ordered(this=_value())]),
        spec=exp.WindowSpec(
            kind="ROWS", start=num_before, start_side="PRECEDING", end="CURRENT ROW"
        ),
    )
    return exp.cast(over, "bigint")


def _quantiles_reached(count: exp.Expr, place: int) -> exp.Expr:
    scaled = exp.Mul(this=count, expression=_whole(f"num_quantiles{place}"))
    return exp.IntDiv(this=exp.Paren(this=scaled), expression=_whole(f"total{place}"))


@cache
def bins_query(num_cuts: int, num_inner_edges: int) -> Query:
    """Rows and clicks by interval and bin: two histograms of a column in one scan.

    Interval i, `place`, holds the values above i cuts, $cut0 and so on: it is open on the left and
    closed on the right, the first and last have no end; infinite values are in those. Missing ones
    have the interval NULL. Bin i holds finite values at or above i of the inner edges, $edge0 and
    so on; others have the bin NULL. Cuts and edges ascend; of equal ones the first is meant.
    """
    is_missing = exp.Is(this=_value(), expression=exp.null())
    is_infinite = exp.GT(this=exp.Abs(this=_value()), expression=_largest())
    branches: list[tuple[exp.Expr, exp.Expr]] = [
        (exp.Or(this=is_missing, expression=is_infinite), exp.null())
    ]
    for index in range(num_inner_edges):
        below = exp.LT(this=_value(), expression=_number(f"edge{index}"))
        branches.append((below, _integer(index)))
    bins = _case(branches, _integer(num_inner_edges))
    rows = exp.select(
        _as(_interval(num_cuts, "cut"), "place"),
        _as(bins, "bin"),
        exp.column("num_rows"),
        exp.column("num_clicks"),
    ).from_(_cleaned(ColumnType.NUMBER))
    return Query(
        _sum_by(["place", "bin"], rows, ["num_rows", "num_clicks"]),
        small_counts.count_bins(num_cuts, num_inner_edges),
    )


@cache
def other_intervals_query(num_edges: int) -> Query:
    """Rows of each sample of `other_counts` by interval, as `bins_query` has them."""
    rows = exp.select(
        exp.column("sample"), _as(_interval(num_edges, "edge"), "place"), exp.column("num_rows")
    ).from_(_cleaned(ColumnType.NUMBER, OTHER_COUNTS))
    return Query(
        _sum_by(["sample", "place"], rows, ["num_rows"]),
        small_counts.count_other_intervals(num_edges),
    )


@cache
def other_values_query() -> Query:
    """Rows of each sample of `other_counts` by what training knows of their value.

    `is_known` tells whether training has the value, NULL if it is missing; `value` is given where
    training has it in more than $least_rows rows, or in as many and it is not after $last_value.
    """
    value, known_rows = exp.column("value", "cleaned"), exp.column("num_rows", "known")
    is_known = (
        exp.Case()
        .when(exp.Is(this=value, expression=exp.null()), exp.null())
        .else_(exp.Not(this=exp.Is(this=known_rows, expression=exp.null())))
    )
    last_value = exp.Placeholder(this="last_value")
    tied = exp.And(
        this=exp.EQ(this=known_rows, expression=_whole("least_rows")),
        expression=exp.LTE(this=value, expression=last_value),
    )
    more = exp.GT(this=known_rows, expression=_whole("least_rows"))
    frequent = exp.Or(this=more, expression=exp.Paren(this=tied))
    same_value = exp.EQ(this=value, expression=exp.column("value", "known"))
    known = exp.alias_(exp.to_table(TABLE), "known", table=True)
    rows = (
        exp.select(
            exp.column("sample", "cleaned"),
            _as(is_known, "is_known"),
            _as(exp.Case().when(frequent, value), "value"),
            exp.column("num_rows", "cleaned"),
        )
        .from_(_cleaned(ColumnType.TEXT, OTHER_COUNTS))
        .join(known, on=same_value, join_type="left")
    )
    return Query(
        _sum_by(["sample", "is_known", "value"], rows, ["num_rows"]),
        small_counts.count_other_values,
    )


@cache
def group_sizes_query() -> Query:
    """How many values of a text column have so many rows and clicks, missing ones apart.

    `is_missing` is 1 for NULL and '', which may be two values.
    """
    missing = exp.Is(this=_value(), expression=exp.null())
    kept = [exp.column(name) for name in ("num_rows", "num_clicks")]
    rows = exp.select(
        _as(exp.Case().when(missing, _integer(1)).else_(_integer(0)), "is_missing"), *kept
    ).from_(_cleaned(ColumnType.TEXT))
    keys = [exp.column("is_missing"), *(one.copy() for one in kept)]
    return Query(
        exp.select(*keys, _as(exp.Count(this=exp.Star()), "num_values"))
        .from_(rows.subquery("groups"))
        .group_by(*keys)
        .order_by(*keys),
        small_counts.count_group_sizes,
    )


@cache
def frequent_values_query(
    column_type: ColumnType, min_count: int, max_size: int | None, *, weighted: bool = False
) -> Query:
    """Values present, most frequent first, ties by the value; with rows, clicks and weights."""
    query = (
        exp.select(_value(), *_counts(weighted))
        .from_(_cleaned(column_type, weighted=weighted))
        .where(
            exp.Not(this=exp.Is(this=_value(), expression=exp.null())),
            exp.GTE(this=exp.column("num_rows"), expression=_integer(min_count)),
        )
        .order_by(*_most_frequent_first())
    )
    return Query(
        query if max_size is None else query.limit(max_size),
        None if weighted else small_counts.find_frequent_values(column_type, min_count, max_size),
    )


@cache
def kept_values_query(min_count: int, max_size: int | None) -> Query:
    """How many texts of `part_counts` are among the frequent values, and their rows."""
    part, kept = exp.to_identifier("part"), exp.to_identifier("kept")
    frequent = frequent_values_query(ColumnType.TEXT, min_count, max_size).tree
    if not isinstance(frequent, exp.Select):
        raise TypeError("the query of frequent values is a selection")
    return Query(
        exp.select(
            _as(exp.Count(this=exp.Star()), "num_values"),
            _as(_sum(exp.column("num_rows", table=part)), "num_rows"),
        )
        .from_(exp.alias_(exp.to_table(PART_COUNTS), "part", table=True))
        .join(
            frequent.select(_value(), append=False).subquery(kept),
            on=exp.EQ(
                this=exp.column("value", table=part), expression=exp.column("value", table=kept)
            ),
        )
    )


def _most_frequent_first() -> tuple[exp.Expr, exp.Expr]:
    return exp.Ordered(this=exp.column("num_rows"), desc=True), _value()


def _interval(num_edges: int, name: str) -> exp.Expr:
    """The number of edges below the value, which placeholders of this name hold."""
    branches: list[tuple[exp.Expr, exp.Expr]] = [
        (exp.Is(this=_value(), expression=exp.null()), exp.null())
    ]
    for index in range(num_edges):
        upto = exp.LTE(this=_value(), expression=_number(f"{name}{index}"))
        branches.append((upto, _integer(index)))
    return _case(branches, _integer(num_edges))


def _case(branches: Sequence[tuple[exp.Expr, exp.Expr]], default: exp.Expr) -> exp.Case:
    """As `exp.Case().when(...)`, which would copy all branches for each that is added."""
    ifs = [exp.If(this=condition, true=result) for condition, result in branches]
    return exp.Case(ifs=ifs, default=default)


def _sum_by(keys: Sequence[str], rows: exp.Select, counts: Sequence[str]) -> exp.Select:
    """Sums of the counts for each combination of the keys, NULL among them."""
    columns = [exp.column(key) for key in keys]
    sums = [_as(_sum(exp.column(count)), count) for count in counts]
    return (
        exp.select(*columns, *sums)
        .from_(rows.subquery("keyed"))
        .group_by(*columns)
        .order_by(*columns)
    )


def _cleaned(column_type: ColumnType, table: str = TABLE, *, weighted: bool = False) -> exp.Expr:
    """Value counts with every kind of missing value as NULL."""
    if column_type is ColumnType.TEXT:
        value: exp.Expr = exp.Nullif(this=_value(), expression=exp.Literal.string(""))
    else:
        value = exp.Case().when(exp.IsNan(this=_value()), exp.null()).else_(_value())
    columns = _counts(weighted)
    if table == OTHER_COUNTS:
        columns = [exp.column("sample"), exp.column("num_rows")]
    return exp.select(_as(value, "value"), *columns).from_(table).subquery("cleaned")


def _finite(chains: Chains, *, weighted: bool = False) -> exp.Expr:
    """A row for each value: itself and, after each chain, `value0` and so on; NULL if not finite.

    All chains are of numbers, or all begin with the same transform of texts.
    """
    starts = {chain[0] for chain in chains if chain and chain[0].kind.takes_text}
    if len(starts) > 1 or (starts and not all(chain[:1] == (*starts,) for chain in chains)):
        raise ValueError("chains of one query begin alike")
    names = [f"value{place}" for place in range(len(chains))]
    counts = [column.name for column in _counts(weighted)]
    numbers = _cleaned(ColumnType.NUMBER, weighted=weighted)
    for start in starts:
        numbers = _numbers_of_texts(start, weighted=weighted)
    kept = [exp.column(name) for name in ("value", *counts)]
    rows: exp.Expr = (
        exp.select(*kept, *(_as(_value(), name) for name in names)).from_(numbers).subquery("step")
    )
    # A step of all chains at a time, each in a query of its own, or a long chain would repeat
    # what stands before.
    for position in range(len(starts), max(map(len, chains))):
        values: list[exp.Expr] = []
        for place, (name, chain) in enumerate(zip(names, chains, strict=True)):
            value: exp.Expr = exp.column(name)
            if position < len(chain):
                step = build_step(value, chain[position], placeholder_prefix(place, position))
                value = _as(step, name)
            values.append(value)
        rows = exp.select(*kept, *values).from_(rows).subquery("step")
    values = [
        _as(
            exp.Case().when(
                exp.LTE(this=exp.Abs(this=exp.column(name)), expression=_largest()),
                exp.column(name),
            ),
            name,
        )
        for name in names
    ]
    return exp.select(*kept, *values).from_(rows).subquery("finite")


def _numbers_of_texts(transform: Transform, *, weighted: bool) -> exp.Expr:
    """What a transform makes of the texts, from their counts; NULL is a missing value."""
    num_rows = exp.column("num_rows")
    # NULL and '' are one value here.
    texts = (
        exp.select(_value(), *_sums(weighted))
        .from_(_cleaned(ColumnType.TEXT, weighted=weighted))
        .group_by(_value())
        .subquery("texts")
    )
    match transform:
        case CountEncode(min_count=min_count):
            number = (
                exp.Case()
                .when(exp.Is(this=_value(), expression=exp.null()), exp.null())
                .when(_at_least(num_rows, min_count), exp.cast(num_rows.copy(), "double"))
                .else_(_double(0.0))
            )
        case TargetEncode(min_count=min_count, smoothing=smoothing):
            base = _click_rate(weighted=weighted).subquery()
            clicks = exp.Add(
                this=_in_rows("click_weight" if weighted else "num_clicks", weighted=weighted),
                expression=exp.Mul(this=_double(smoothing), expression=base.copy()),
            )
            rows = exp.Add(
                this=_in_rows(_size(weighted), weighted=weighted), expression=_double(smoothing)
            )
            rate: exp.Expr = exp.Div(this=exp.Paren(this=clicks), expression=exp.Paren(this=rows))
            if weighted:
                weighs = exp.GT(this=exp.column("weight"), expression=_double(0.0))
                rate = exp.Case().when(weighs, rate).else_(base.copy())
            number = exp.Case().when(_at_least(num_rows, min_count), rate).else_(base)
        case _:
            raise ValueError(f"'{transform.name}' has no number as its result")
    return exp.select(_as(number, "value"), *_counts(weighted)).from_(texts).subquery("numbers")


def _in_rows(column: str, *, weighted: bool) -> exp.Expr:
    """Rows as a float; of a weight, as many rows as would weigh as much, were all alike."""
    number = exp.cast(exp.column(column), "double")
    if not weighted:
        return number
    rows = exp.cast(_sum(exp.column("num_rows")), "double")
    a_row = exp.Div(this=exp.Sum(this=exp.column("weight")), expression=rows)
    return exp.Div(
        this=number, expression=exp.select(_as(a_row, "weight_of_a_row")).from_(TABLE).subquery()
    )


def _click_rate(*, weighted: bool) -> exp.Select:
    names = reversed(_WEIGHTS) if weighted else ("num_clicks", "num_rows")
    clicks, rows = (exp.Sum(this=exp.cast(exp.column(name), "double")) for name in names)
    rate = exp.Div(this=clicks, expression=rows)
    return exp.select(_as(rate, "rate")).from_(TABLE)


def _grouped(chain: Chain) -> exp.Expr:
    """Finite values after a chain, each once: transforms such as clip make values equal."""
    value = exp.column("value0")
    rows = (
        exp.select(_as(value, "value"), _as(_value(), "source"), exp.column("num_rows"))
        .from_(_finite((chain,)))
        .where(exp.Not(this=exp.Is(this=value.copy(), expression=exp.null())))
        .subquery("present")
    )
    if not chain:
        return rows
    return (
        exp.select(
            _value(),
            _as(exp.Min(this=exp.column("source")), "source"),
            _as(_sum(exp.column("num_rows")), "num_rows"),
        )
        .from_(rows)
        .group_by(_value())
        .subquery("grouped")
    )


def _counts(weighted: bool) -> list[exp.Expr]:
    """The columns of value counts beside the value."""
    return [exp.column(name) for name in (*_COUNTS, *(_WEIGHTS if weighted else ()))]


def _sums(weighted: bool) -> list[exp.Expr]:
    sums = [_as(_sum(exp.column(name)), name) for name in _COUNTS]
    weights = [_as(exp.Sum(this=exp.column(name)), name) for name in _WEIGHTS]
    return [*sums, *(weights if weighted else ())]


def _size(weighted: bool) -> str:
    """The column that says how much a value counts."""
    return "weight" if weighted else "num_rows"


def _sum_over(term: exp.Expr, size: str) -> exp.Expr:
    """The float64 sum of a term over rows, or over what they weigh."""
    times = exp.cast(exp.column(size), "double")
    return exp.Sum(this=exp.Mul(this=exp.Paren(this=term), expression=times))


def _sum_if(column: str, condition: exp.Expr) -> exp.Expr:
    return _sum(exp.Case().when(condition.copy(), exp.column(column)).else_(_integer(0)))


def _weight_if(column: str, condition: exp.Expr) -> exp.Expr:
    weighed = exp.Case().when(condition.copy(), exp.column(column)).else_(_double(0.0))
    # The sum of no rows is NULL in SQL.
    return exp.Coalesce(this=exp.Sum(this=weighed), expressions=[_double(0.0)])


def _sum(term: exp.Expr) -> exp.Expr:
    # The sum of no rows is NULL in SQL.
    return exp.cast(exp.Coalesce(this=exp.Sum(this=term), expressions=[_integer(0)]), "bigint")


def _value() -> exp.Expr:
    return exp.column("value")


def _as(expression: exp.Expr, name: str) -> exp.Expr:
    return exp.alias_(expression, name)


def _integer(number: int) -> exp.Expr:
    return exp.Literal.number(number)


def _at_least(column: exp.Expr, count: int) -> exp.Expr:
    return exp.GTE(this=column.copy(), expression=_integer(count))


def _double(number: float) -> exp.Expr:
    return exp.cast(exp.Literal.number(repr(number)), "double")


def _number(name: str) -> exp.Expr:
    return exp.cast(exp.Placeholder(this=name), "double")


def _whole(name: str) -> exp.Expr:
    return exp.cast(exp.Placeholder(this=name), "bigint")


def _largest() -> exp.Expr:
    """The largest finite number; dialects differ in how they write infinity."""
    return exp.cast(exp.Literal.string("1.7976931348623157e308"), "double")
