"""The nodes of this process: their addresses, and their agents, a thread for each."""

import queue
import socket
import threading
from collections.abc import Sequence
from contextlib import ExitStack

from ctr_pipeline.distributed.coordination.rendezvous import NodeRange
from ctr_pipeline.distributed.elastic.agent import Agent
from ctr_pipeline.distributed.rpc.access import is_loopback
from ctr_pipeline.errors import CtrPipelineError

_MOST_NODES = 1000
_MAX_PORT = 65_535


def parse_nodes(text: str) -> NodeRange:
    """The range that `2:4` means; `2` is `2:2`.

    Raises:
        CtrPipelineError: It is none.
    """
    words = text.split(":")
    if len(words) <= 2 and all(word.isascii() and word.isdecimal() for word in words):
        nodes = NodeRange(int(words[0]), int(words[-1]))
        if 1 <= nodes.least <= nodes.most <= _MOST_NODES:
            return nodes
    raise CtrPipelineError(
        "is no range of nodes",
        place=f"--nodes {text}",
        remedy=f"Write MIN:MAX, such as 2:4, from 1 to {_MOST_NODES}",
    )


def parse_address(option: str, text: str) -> str:
    """An address that is written `HOST:PORT`.

    Raises:
        CtrPipelineError: It is none.
    """
    host, _, port = text.rpartition(":")
    if host and port.isascii() and port.isdecimal() and 1 <= int(port) <= _MAX_PORT:
        return text
    raise CtrPipelineError(
        "is no address", place=f"{option} {text}", remedy="Write HOST:PORT, such as host-1:7200"
    )


def local_host(rendezvous: str) -> str:
    """The name by which other nodes reach this machine."""
    return "127.0.0.1" if is_loopback(rendezvous) else socket.gethostname()


def free_addresses(host: str, number: int) -> list[str]:
    """Addresses of a host that is this one, with different ports that nobody uses now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for one in sockets:
            one.bind(("", 0))
        return [f"{host}:{one.getsockname()[1]}" for one in sockets]


def run_agents(agents: Sequence[Agent], *, least: int) -> int:
    """Runs agents until each has ended; once too few are left, the others are stopped.

    Args:
        agents: All agents of this process.
        least: Number of them without which no world can be formed.

    Returns:
        0 if the script succeeded on a node, otherwise the first exit code.

    Raises:
        CtrPipelineError: The first error of an agent, if the script succeeded on none.
    """
    outcomes: queue.SimpleQueue[int | Exception | None] = queue.SimpleQueue()

    def run(agent: Agent) -> None:
        try:
            outcomes.put(agent.run())
        except Exception as error:  # noqa: BLE001  raised again below
            outcomes.put(error)

    threads = [threading.Thread(target=run, args=(agent,), daemon=True) for agent in agents]
    ended: list[int | Exception | None] = []
    try:
        for thread in threads:
            thread.start()
        while len(ended) < len(agents):
            ended.append(outcomes.get())
            if ended[-1] != 0 and 0 not in ended and len(agents) - len(ended) < least:
                _stop(agents)
    except BaseException:
        _stop(agents)
        for thread in threads:
            thread.join()
        raise
    # The first agent to end was not stopped by us, so it has an outcome.
    first = 0 if 0 in ended else ended[0]
    if isinstance(first, Exception):
        raise first
    return first or 0


def _stop(agents: Sequence[Agent]) -> None:
    for agent in agents:
        agent.stop()
