"""Units of the phases before training, done in this process as workers would do them."""

from functools import cache, partial

from ctr_pipeline.distributed.coordination.preparation import PreparationBoard, UnitReport
from ctr_pipeline.pipeline.job.unit_work import open_work
from ctr_pipeline.pipeline.stages.header import inspect_named


class Report:
    """Keeps what is reported."""

    def __init__(self):
        self.amount = 0
        self.said = []
        self.noted = []

    def add(self, amount):
        self.amount += amount

    def say(self, line):
        self.said.append(line)

    def note(self, text):
        self.noted.append(text)


class Sharing:
    """Does all units here, as workers would; the second attempt at each counts.

    Args:
        loaded: The config as workers get it.
    """

    def __init__(self, loaded):
        self._loaded = loaded
        self._inspect = cache(partial(inspect_named, loaded))
        self.num_units = {}
        self.said = []
        self.noted = []

    def __call__(self, work, units):
        self.num_units[work.phase] = len(units)
        board = PreparationBoard(units, {}, silence_seconds=5.0, max_failures=3)
        for _ in units:
            work.work_on(board.lease("lost", 0.0), Report())
        board.release("lost")
        while (lease := board.lease("w", 0.0)) is not None:
            if lease.attempt == 1 and lease.unit.number % 2:
                board.release("w")
                continue
            worker = open_work(self._loaded, self._inspect, work.phase)
            assert worker.fingerprint == work.fingerprint
            report = Report()
            worker.work_on(lease, report)
            assert report.amount > 0 or lease.unit.measure == "stages"
            assert worker.is_whole(lease)
            board.report(UnitReport("w", lease, report.amount, finished=True), 0.0)
            work.look(board)
            self.said += report.said
            self.noted += report.noted
        return {split: board.parts_of(split) for split in {unit.split: 0 for unit in units}}
