"""What agents and the rendezvous say to each other."""

from dataclasses import dataclass

SERVICE = "RendezvousService"


@dataclass(frozen=True)
class GetClusterSpec:
    """Asks for a place in the next world; answered with a `World`."""

    address: str
    least: int
    most: int
    reset: bool


@dataclass(frozen=True)
class GetWaitingNodes:
    """Renews the lease, and asks whether the world is still the right one."""

    address: str
    version: int


@dataclass(frozen=True)
class WaitingNodes:
    """Positive: nodes that may join; negative: members that were lost; 0: go on."""

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
