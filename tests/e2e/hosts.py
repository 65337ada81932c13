"""Hosts for members of a job: namespaces of this machine, or at least addresses of their own."""

import os
import secrets
import shutil
import subprocess
from contextlib import ExitStack


class HostsUnavailableError(Exception):
    """This machine does not let us have them; the text says why."""


class NamespaceHosts:
    """Hosts that share nothing but the files of this machine.

    Each has a network namespace of its own, with a loopback device and one address on a bridge, a
    host name, and numbers of processes that mean something else on every other host.

    Args:
        number: Of hosts.

    Raises:
        HostsUnavailableError: It takes root and iproute2, and a kernel that allows it.
    """

    def __init__(self, number: int) -> None:
        if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("unshare"):
            raise HostsUnavailableError("network namespaces need root, ip and unshare")
        self._mark = secrets.token_hex(2)
        self._subnet = f"10.213.{int(self._mark[:2], 16)}"
        self._bridge = f"ctrbr{self._mark}"
        self._stack = ExitStack()
        try:
            self._ip("link", "add", self._bridge, "type", "bridge")
            self._stack.callback(self._ip, "link", "del", self._bridge)
            self._ip("addr", "add", f"{self._subnet}.1/24", "dev", self._bridge)
            self._ip("link", "set", self._bridge, "up")
            for index in range(number):
                self._add(index)
        except HostsUnavailableError:
            self.close()
            raise

    def _add(self, index: int) -> None:
        name, cable = self._name(index), f"ctr{self._mark}-{index}"
        self._ip("netns", "add", name)
        self._stack.callback(self._ip, "netns", "del", name)
        self._ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", name)
        # Both ends go at once; a namespace stays for as long as anybody is in it.
        self._stack.callback(self._ip, "link", "del", cable)
        self._ip("link", "set", cable, "master", self._bridge)
        self._ip("link", "set", cable, "up")
        self._ip("-n", name, "addr", "add", f"{self.address(index)}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            self._ip("-n", name, "link", "set", device, "up")

    def close(self) -> None:
        """Removes them; whatever ran there has ended."""
        self._stack.close()

    def address(self, index: int) -> str:
        """Where the others, and this machine itself, reach a host."""
        return f"{self._subnet}.{index + 2}"

    def command(self, index: int, *command: str) -> list[str]:
        """The command on a host; killing its process ends it there, too."""
        alone = ["unshare", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
        named = ["sh", "-c", 'hostname "$0" && exec "$@"', f"host-{index}"]
        return ["ip", "netns", "exec", self._name(index), *alone, *named, *command]

    def _name(self, index: int) -> str:
        return f"ctrpipe-{self._mark}-{index}"

    @staticmethod
    def _ip(*arguments: str) -> None:
        done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise HostsUnavailableError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


class LoopbackHosts:
    """Addresses of the loopback device: members name each other by them, and that is all.

    Args:
        number: Of hosts.
    """

    def __init__(self, number: int) -> None:
        self._number = number

    def close(self) -> None:
        """Nothing is left behind."""

    def address(self, index: int) -> str:
        """Of one host."""
        return f"127.0.0.{index + 2}"

    def command(self, _index: int, *command: str) -> list[str]:
        """The command as it is."""
        return [*command]
