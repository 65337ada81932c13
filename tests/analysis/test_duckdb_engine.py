import os
import signal
import threading

import pytest
from sqlglot import parse_one

from ctr_pipeline.analysis.duckdb_engine import DuckDbEngine
from ctr_pipeline.analysis.sql import Query
from ctr_pipeline.errors import StatisticsError


@pytest.fixture
def engine(tmp_path):
    with DuckDbEngine(spill_folder=tmp_path, threads=1, memory_limit_gb=0.1) as engine:
        yield engine


def test_ctrl_c_ends_a_long_query_at_once(engine):
    endless = Query(
        parse_one("SELECT SUM(a.range * b.range) FROM RANGE(10000000) AS a, RANGE(10000000) AS b")
    )
    started = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    started.start()
    with pytest.raises(KeyboardInterrupt):
        engine.rows(endless)
    # The engine is usable afterwards.
    assert engine.rows(Query(parse_one("SELECT 1"))) == [(1,)]


def test_batches_are_bounded_and_in_order(engine):
    query = Query(parse_one("SELECT range AS n FROM RANGE(200000) ORDER BY range DESC"))
    batches = list(engine.batches(query))
    assert max(batch.num_rows for batch in batches) <= 65_536 * 2
    numbers = [number for batch in batches for number in batch.column(0).to_pylist()]
    assert numbers == list(range(200_000))[::-1]


def test_query_that_the_database_refuses_is_an_error_of_one_line(engine):
    with pytest.raises(StatisticsError) as caught:
        engine.rows(Query(parse_one("SELECT absent FROM nowhere")))
    assert "\n" not in str(caught.value)
