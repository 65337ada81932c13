"""Which partitions are busy, from the counters that servers report."""

from dataclasses import dataclass

from ctr_pipeline.distributed.coordination.messages import PartitionLoads


@dataclass(frozen=True)
class BusyPartition:
    """A partition and what it served.

    Attributes:
        partition: Its number.
        share: Of the keys that its server served, pulled and pushed, 0 … 1.
    """

    partition: int
    share: float


def rank_partitions(
    loads: PartitionLoads, earlier: PartitionLoads | None
) -> tuple[BusyPartition, ...]:
    """Partitions of one server, the busiest first; none if it served nothing.

    Args:
        loads: Now.
        earlier: Only what was served since then counts; None, or counters that have gone back, as
            those of a new process: all.
    """
    before = {} if earlier is None else dict(zip(earlier.partitions, _keys(earlier), strict=True))
    now = dict(zip(loads.partitions, _keys(loads), strict=True))
    if any(keys < before.get(partition, 0) for partition, keys in now.items()):
        before = {}
    served = {partition: keys - before.get(partition, 0) for partition, keys in now.items()}
    total = sum(served.values())
    if not total:
        return ()
    ranked = sorted(served, key=lambda partition: (-served[partition], partition))
    return tuple(BusyPartition(partition, served[partition] / total) for partition in ranked)


def _keys(loads: PartitionLoads) -> list[int]:
    return [
        pulled + pushed for pulled, pushed in zip(loads.pulled_keys, loads.pushed_keys, strict=True)
    ]
