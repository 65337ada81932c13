"""How much memory the next pod of a member gets."""

from dataclasses import dataclass
from decimal import Decimal

from ctr_pipeline.config.kubernetes import MemberPodConfig
from ctr_pipeline.distributed.coordination.messages import Role
from ctr_pipeline.distributed.launchers.kubernetes.api import parse_quantity

_MORE = Decimal("1.5")
"""Times what a pod had that ran out of it."""


@dataclass(frozen=True)
class NextMemory:
    """The memory of a pod that comes in place of another one.

    Attributes:
        options: What the config says of pods of its role.
        had: Memory of the other one, as Kubernetes writes it; None: it had no limit.
        ran_out: The other one ended because that was too little.
    """

    options: MemberPodConfig
    role: Role
    had: str | None
    ran_out: bool

    @property
    def wanted(self) -> str | None:
        """What it gets; None: what the config says."""
        if self.had is None or self.options.max_memory is None:
            return None
        before = parse_quantity(self.had)
        most = parse_quantity(self.options.max_memory)
        wanted = before * _MORE if self.ran_out else before
        if wanted >= most:
            chosen, size = str(self.options.max_memory), most
        else:
            chosen, size = _format(wanted) if self.ran_out else self.had, wanted
        return chosen if size > parse_quantity(self.options.memory) else None

    @property
    def remedy(self) -> str:
        """How much more the next pod gets than the one that ran out; empty if it does not."""
        gets = self.wanted
        return "" if gets in {None, self.had} else f"its next pod may use {gets}"

    @property
    def advice(self) -> str:
        """Which key limits it, and what to set that to; empty if there is a remedy, or no limit."""
        if self.had is None or self.remedy:
            return ""
        section = "parameter_servers" if self.role == "ps" else "workers"
        key = "memory" if self.options.max_memory is None else "max_memory"
        more = _format(parse_quantity(self.had) * _MORE)
        says = f"it may use {self.had}, as kubernetes.{section}.{key} says"
        return f"{says}; set that to {more} or more"


def _format(num_bytes: Decimal) -> str:
    """As Kubernetes takes it; parts of a mebibyte are left out."""
    mebibytes = int(num_bytes // 2**20)
    return f"{mebibytes}Mi" if mebibytes % 1024 else f"{mebibytes // 1024}Gi"
