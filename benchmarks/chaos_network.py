"""Faults of the network between the members of a real run: each talks through a proxy."""

import json
import socket
import time
from collections.abc import Callable
from typing import Any

from chaos_faults import Disturbance, Fault

SHORTER_THAN_A_LEASE = 2.5


def tell(chaos: Disturbance, proxy: str, do: str, **details: Any) -> dict[str, Any]:
    """Has a proxy of the run do something; what went through it so far."""
    control = str(chaos.run.folder / "control.sock")
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(20.0)
        connection.connect(control)
        connection.sendall(json.dumps({"proxy": proxy, "do": do, **details}).encode() + b"\n")
        answer: dict[str, Any] = json.loads(connection.makefile().readline())
    if "error" in answer:
        raise RuntimeError(f"the proxy before {proxy}: {answer['error']}")
    return answer


def disturb_network(
    proxy: str, do: str, *, seconds: float, may_restart: bool, **details: Any
) -> Callable[[Disturbance], None]:
    """A fault of the network for some seconds; then it heals.

    Args:
        proxy: `master` or `ps-N`: whose callers are disturbed.
        do: What.
        seconds: Until it heals.
        may_restart: Whether it is long enough for members to be replaced.
        details: Of what.
    """

    def strike(chaos: Disturbance) -> None:
        chaos.wait_for_moment()
        chaos.require_at_work("worker", 0)
        before = tell(chaos, proxy, "traffic")

        def has_passed() -> bool:
            return tell(chaos, proxy, "traffic")["to_target"] > before["to_target"]

        chaos.run.wait_for(f"traffic through the proxy before {proxy}", has_passed, 30.0)
        tell(chaos, proxy, do, **details)
        chaos.strike(f"calls of {proxy}: {do} {details or ''} for {seconds:g} s")
        restarts = _restarts(chaos)
        time.sleep(seconds)
        tell(chaos, proxy, "heal")
        chaos.strike("healed")
        chaos.run.wait_for("running steps", chaos.run.is_training, 60.0)
        found = _restarts(chaos)
        chaos.expect(
            may_restart or found == restarts, f"{found - restarts} members restarted by a short cut"
        )

    return strike


def _restarts(chaos: Disturbance) -> int:
    return sum(chaos.run.restarts.values())


def _fault(
    name: str,
    what: str,
    proxy: str,
    do: str,
    *,
    seconds: float = SHORTER_THAN_A_LEASE,
    may_restart: bool = False,
    is_core: bool = False,
    **details: Any,
) -> Fault:
    return Fault(
        name,
        what,
        disturb_network(proxy, do, seconds=seconds, may_restart=may_restart, **details),
        is_proxied=True,
        is_core=is_core,
    )


NETWORK_FAULTS: tuple[Fault, ...] = (
    _fault("ps_cut", "worker↔PS cut for 2.5 s", "ps-1", "cut"),
    _fault("ps_cut_long", "worker↔PS cut for 20 s", "ps-1", "cut", seconds=20, may_restart=True),
    _fault("ps_stalled", "worker↔PS stalled for 2.5 s", "ps-1", "stall", is_core=True),
    _fault(
        "ps_stalled_long", "worker↔PS stalled for 20 s", "ps-1", "stall", seconds=20,
        may_restart=True,
    ),
    _fault(
        "ps_network_slow", "worker↔PS slow: 20 ms and 4 MB/s for 10 s", "ps-1", "slow",
        seconds=10, delay_seconds=0.02, bytes_per_second=4e6,
    ),
    _fault(
        "ps_half_open", "worker↔PS half-open, answers lost, 2.5 s", "ps-1", "half_open",
        dead="TO_CALLER",
    ),
    _fault(
        "ps_half_open_back", "worker↔PS half-open, requests lost, 2.5 s", "ps-1", "half_open",
        dead="TO_TARGET",
    ),
    _fault("ps_reset", "worker↔PS connections reset", "ps-1", "reset_once", seconds=0.1),
    _fault("master_cut", "members↔master cut for 2.5 s", "master", "cut"),
    _fault(
        "master_cut_long", "members↔master cut for 20 s", "master", "cut", seconds=20,
        may_restart=True,
    ),
    _fault("master_stalled", "members↔master stalled for 2.5 s", "master", "stall", is_core=True),
    _fault(
        "master_stalled_long", "members↔master stalled for 20 s", "master", "stall", seconds=20,
        may_restart=True,
    ),
    _fault(
        "master_network_slow", "members↔master slow: 200 ms a block for 10 s", "master", "slow",
        seconds=10, delay_seconds=0.2,
    ),
    _fault(
        "master_half_open", "members↔master half-open, answers lost, 2.5 s", "master",
        "half_open", dead="TO_CALLER",
    ),
)  # fmt: skip
