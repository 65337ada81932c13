import threading

from ctr_pipeline.distributed.master.serial_executor import SerialExecutor


def test_work_is_done_in_order_and_close_waits_for_it():
    done = []
    executor = SerialExecutor("test", on_error=done.append)
    for number in range(100):
        executor.put(lambda number=number: done.append(number))
    executor.close(10.0)
    assert done == list(range(100))


def test_an_error_is_told_and_what_follows_is_done():
    errors, done = [], []
    told = threading.Event()

    def fail():
        raise ValueError("no")

    executor = SerialExecutor("test", on_error=lambda error: (errors.append(error), told.set()))
    executor.put(fail)
    executor.put(lambda: done.append(1))
    assert told.wait(60)
    executor.close(10.0)
    assert [str(error) for error in errors] == ["no"]
    assert done == [1]
