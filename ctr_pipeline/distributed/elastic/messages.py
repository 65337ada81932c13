"""What agents and the rendezvous say to each other."""

from dataclasses import dataclass

SERVICE = "RendezvousService"

CUT_OFF = "cut_off"
"""Code of the refusal of a node that is cut off from others, which reach each other."""


@dataclass(frozen=True)
class GetClusterSpec:
    """Asks for a place in the next world; answered with a `World`.

    Attributes:
        has_failed: The caller began a step that nobody can finish without it.
        unreachable: Members of the current world that the caller cannot reach.
    """

    address: str
    least: int
    most: int
    reset: bool
    has_failed: bool = False
    unreachable: tuple[str, ...] = ()


@dataclass(frozen=True)
class GetWaitingNodes:
    """Renews the lease, and asks whether the world is still the right one."""

    address: str
    version: int


@dataclass(frozen=True)
class WaitingNodes:
    """Positive: nodes that may join; negative: members that were lost or failed; 0: go on."""

    number: int


@dataclass(frozen=True)
class Barrier:
    """Waits for all members; answered with a `Met`."""

    address: str
    tag: str
    timeout_seconds: float


@dataclass(frozen=True)
class Synchronize:
    """Waits for the data of all members; answered with a `Met`."""

    address: str
    tag: str
    data: str
    timeout_seconds: float


@dataclass(frozen=True)
class Leave:
    """A node goes, for good."""

    address: str


@dataclass(frozen=True)
class ScaleNodes:
    """Whoever serves the rendezvous is to keep so many nodes running."""

    number: int


@dataclass(frozen=True)
class TakeRecords:
    """A member of a world is to read records; answered with a `RecordsTaken`.

    Attributes:
        name: Names the records.
        content: What they are, in words.
    """

    address: str
    version: int
    name: str
    content: str


@dataclass(frozen=True)
class RecordsTaken:
    """How many records are finished."""

    position: int


@dataclass(frozen=True)
class ReportRecords:
    """Records that are finished, so many; `begins`: none of them by this world."""

    version: int
    name: str
    position: int
    begins: bool
