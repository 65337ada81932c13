"""Results come in order, however the threads take their time, and no more is drawn than needed."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from ctr_pipeline.ordered_map import map_in_order


@pytest.fixture
def pool():
    with ThreadPoolExecutor(3) as pool:
        yield pool


def test_results_come_in_the_order_of_the_items(pool):
    second_is_done = threading.Event()

    def work(item):
        if item == 0:
            assert second_is_done.wait(60)
        if item == 1:
            second_is_done.set()
        return item * item

    assert list(map_in_order(pool, work, range(5), ahead=2)) == [0, 1, 4, 9, 16]


def test_no_more_items_are_drawn_than_are_under_way(pool):
    drawn = []

    def items():
        for item in range(9):
            drawn.append(item)
            yield item

    results = map_in_order(pool, str, items(), ahead=2)
    assert next(results) == "0"
    assert drawn == [0, 1, 2]


def test_an_error_comes_after_the_results_before_it(pool):
    results = map_in_order(pool, lambda item: 1 // (2 - item), range(4), ahead=3)
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(ZeroDivisionError):
        next(results)


def test_ordered_map_cancels_what_has_not_begun_when_closed_early():
    release, begun = threading.Event(), []

    def work(item):
        begun.append(item)
        if item:
            assert release.wait(60)
        return item

    with ThreadPoolExecutor(1) as pool:
        results = map_in_order(pool, work, range(4), ahead=3)
        assert next(results) == 0
        results.close()
        release.set()
    assert begun in ([0], [0, 1])
