"""A query as a syntax tree, rendered per dialect at the edge, and the expressions queries share.

Queries read the table `value_counts`, which has a row for each value of one column with the columns
`value`, `num_rows` and `num_clicks`, and with weights `weight` and `click_weight`. Numbers that
differ from column to column are placeholders, so that a query is built and rendered once for its
shape.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlglot import exp

from ctr_pipeline.analysis.small_counts import Answer
from ctr_pipeline.analysis.statistics_plan import Chain
from ctr_pipeline.transforms.shared.sql import double

PART_COUNTS = "part_counts"
OTHER_COUNTS = "other_counts"
TABLE = "value_counts"
COUNTS = ("num_rows", "num_clicks")
WEIGHTS = ("weight", "click_weight")
"""Columns of value counts: always, and where rows have weights."""


Chains = tuple[Chain, ...]


class Query:
    """A syntax tree that remembers what it looks like in each dialect.

    Args:
        tree: The tree.
        answer: Gives the same rows of a small column without a database; None if nothing does.
    """

    def __init__(self, tree: exp.Expr, answer: Answer | None = None) -> None:
        self.tree = tree
        self.answer = answer
        self._rendered: dict[str, str] = {}

    def render(self, dialect: str = "duckdb") -> str:
        """The SQL text, with named placeholders."""
        if dialect not in self._rendered:
            self._rendered[dialect] = self.tree.sql(dialect=dialect)
        return self._rendered[dialect]

    def bind(
        self, parameters: Mapping[str, float | str], tables: Mapping[str, exp.Expr]
    ) -> exp.Expr:
        """The tree for an engine without placeholders and temporary tables.

        Args:
            parameters: By placeholder; a number becomes its shortest exact text, which the cast
                around every placeholder turns back into the same number.
            tables: Tables and subqueries in place of tables, by their names.
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
                if alias is None and isinstance(table, exp.Subquery):
                    # A subquery needs one, and columns may be qualified by the table's name.
                    alias = exp.TableAlias(this=exp.to_identifier(node.name))
                table.set("alias", alias and alias.copy())
                return table
            return node

        return self.tree.transform(replace)


RowsOf = Callable[[Query, Mapping[str, float | str]], list[tuple[Any, ...]]]
"""Runs a query with its parameters."""


def count_columns(weighted: bool) -> list[exp.Expr]:
    """The columns of value counts beside the value."""
    return [exp.column(name) for name in (*COUNTS, *(WEIGHTS if weighted else ()))]


def size_column(weighted: bool) -> str:
    """The column that says how much a value counts."""
    return "weight" if weighted else "num_rows"


def value_column() -> exp.Expr:
    """The value, of value counts or of what is made of them."""
    return exp.column("value")


def named(expression: exp.Expr, name: str) -> exp.Expr:
    """The expression as a column of this name."""
    return exp.alias_(expression, name)


def sum_over(term: exp.Expr, size: str) -> exp.Expr:
    """The float64 sum of a term over rows, or over what they weigh."""
    times = exp.cast(exp.column(size), "double")
    return exp.Sum(this=exp.Mul(this=exp.Paren(this=term), expression=times))


def sum_if(column: str, condition: exp.Expr) -> exp.Expr:
    """The sum of a column of counts where the condition holds; 0 of no rows."""
    return whole_sum(exp.Case().when(condition.copy(), exp.column(column)).else_(integer(0)))


def weight_if(column: str, condition: exp.Expr) -> exp.Expr:
    """The float64 sum of a column of weights where the condition holds; 0 of no rows."""
    weighed = exp.Case().when(condition.copy(), exp.column(column)).else_(double(0.0))
    # The sum of no rows is NULL in SQL.
    return exp.Coalesce(this=exp.Sum(this=weighed), expressions=[double(0.0)])


def whole_sum(term: exp.Expr) -> exp.Expr:
    """The sum of whole numbers; 0 of no rows."""
    # The sum of no rows is NULL in SQL.
    return exp.cast(exp.Coalesce(this=exp.Sum(this=term), expressions=[integer(0)]), "bigint")


def count_sums(weighted: bool) -> list[exp.Expr]:
    """The sums of all columns of value counts beside the value."""
    sums = [named(whole_sum(exp.column(name)), name) for name in COUNTS]
    weights = [named(exp.Sum(this=exp.column(name)), name) for name in WEIGHTS]
    return [*sums, *(weights if weighted else ())]


def sums_by(keys: Sequence[str], rows: exp.Select, counts: Sequence[str]) -> exp.Select:
    """Sums of the counts for each combination of the keys, NULL among them."""
    columns = [exp.column(key) for key in keys]
    sums = [named(whole_sum(exp.column(count)), count) for count in counts]
    return (
        exp.select(*columns, *sums)
        .from_(rows.subquery("keyed"))
        .group_by(*columns)
        .order_by(*columns)
    )


def case_of(branches: Sequence[tuple[exp.Expr, exp.Expr]], default: exp.Expr) -> exp.Case:
    """As `exp.Case().when(...)`, which would copy all branches for each that is added."""
    ifs = [exp.If(this=condition, true=result) for condition, result in branches]
    return exp.Case(ifs=ifs, default=default)


def integer(number: int) -> exp.Expr:
    """A whole number that stands in the query."""
    return exp.Literal.number(number)


def number_parameter(name: str) -> exp.Expr:
    """A placeholder of a float64."""
    return exp.cast(exp.Placeholder(this=name), "double")


def whole_parameter(name: str) -> exp.Expr:
    """A placeholder of a whole number."""
    return exp.cast(exp.Placeholder(this=name), "bigint")


def largest_float() -> exp.Expr:
    """The largest finite number; dialects differ in how they write infinity."""
    return exp.cast(exp.Literal.string("1.7976931348623157e308"), "double")
