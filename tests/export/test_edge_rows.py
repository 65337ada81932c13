import math

import pyarrow as pa

from ctr_pipeline.export.edge_rows import NUMBER_EDGES, TEXT_EDGES, edge_rows

TYPES = {"C1": "string", "I1": "double", "C2": "string"}
ORDINARY = pa.table({"I1": [7.0], "C1": ["a"], "C2": ["b"]})


def test_every_column_has_every_hard_value_among_ordinary_ones() -> None:
    rows = edge_rows(TYPES, ordinary=ORDINARY)
    assert rows.column_names == list(TYPES)
    for column, edges in {"C1": TEXT_EDGES, "I1": NUMBER_EDGES, "C2": TEXT_EDGES}.items():
        others = [name for name in TYPES if name != column]
        alone = [
            row[column]
            for row in rows.to_pylist()
            if all(row[name] == ORDINARY.column(name)[0].as_py() for name in others)
        ]
        assert set(alone) == set(edges)
    numbers = rows.column("I1").to_pylist()
    assert {math.inf, -math.inf, None} < set(numbers)


def test_edge_rows_leave_out_values_that_mean_missing() -> None:
    rows = edge_rows(TYPES, ordinary=ORDINARY, missing_values=("", "NaN", "0"))
    assert not {"NaN", "0"} & set(rows.column("C1").to_pylist())
    assert None in rows.column("C1").to_pylist()
    numbers = rows.column("I1").to_pylist()
    assert 0.0 in NUMBER_EDGES
    assert 0.0 not in numbers
    assert None in numbers


def test_number_of_rows_is_bounded() -> None:
    types = {f"c{index}": "string" for index in range(400)}
    ordinary = pa.table({column: ["a"] for column in types})
    assert len(TEXT_EDGES) < edge_rows(types, ordinary=ordinary).num_rows <= 1100
