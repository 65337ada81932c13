"""Members of launcher tests: small Python programs instead of the real ones."""

from pathlib import Path


class Scripts:
    """`MemberCommands` whose members run given Python text; `{role}`, `{index}` are filled in."""

    def __init__(self, *, fork_server=None, **texts):
        self.texts = texts
        self.fork_server_script = fork_server
        self.starts = []

    def member(self, start):
        self.starts.append(start)
        return ["-c", self.texts[start.role], start.role, str(start.index), start.incarnation]

    def fork_server(self):
        return None if self.fork_server_script is None else ["-c", self.fork_server_script]

    def from_fork_server(self, start):
        self.starts.append(start)
        return [start.role, str(start.index), start.incarnation]


SLEEP = "import time; time.sleep(600)"


def is_alive(pid):
    """Whether a process exists and has not ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] not in {"Z", "X"}
