"""Which sums of gradients a server of embedding rows applies, drops or takes back; pure.

Rows lie on servers, dense parameters in each member of a world. A server keeps the sum of a step
until somebody names the step of the dense parameters that rows are wanted for: that tells whether
the step was made or is void. A member may have made a step that another one has not when it is
lost, so the last sum that was applied can be taken back until all members are known to have made
the step, which is when all have brought their shares of the next one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

from ctr_pipeline.distributed.coordination.step_sums import Complete, StepSums, Void, Waiting

T = TypeVar("T")


@dataclass(frozen=True)
class Made:
    """A step of a training. Another world that repeats a void step makes another one.

    Attributes:
        step: Steps up to this one.
        world: Version of the world that made it; 0: it was restored.
    """

    step: int
    world: int


@dataclass(frozen=True)
class Settled(Generic[T]):
    """The rows are those of the step that was named, once this is done.

    Attributes:
        action: What to do first: apply `shares`, take the last sum that was applied back, or
            nothing.
        shares: By rank.
        over: Calls of earlier worlds, which are void.
    """

    action: Literal["nothing", "apply", "take_back"] = "nothing"
    shares: tuple[T, ...] = ()
    over: tuple[int, ...] = ()


@dataclass
class RowSteps(Generic[T]):
    """The steps that one server knows of.

    Attributes:
        lineage: Name of the restore that the rows come from; empty: there are none.
        now: The step of the rows.
        version: The world that is served.
    """

    lineage: str = ""
    now: Made = Made(0, 0)
    version: int = 0
    _before: Made | None = None
    _kept: tuple[Made, tuple[T, ...]] | None = None
    _sums: StepSums[T] = field(default_factory=StepSums)

    @property
    def steps(self) -> tuple[Made, ...]:
        """Steps whose rows can be served: now, or once a sum is applied or taken back."""
        kept = None if self._kept is None else self._kept[0]
        return tuple(one for one in (self._before, self.now, kept) if one is not None)

    def forget(self) -> tuple[int, ...]:
        """There are no rows any more; returns calls that are void."""
        over = self._sums.end()
        self.lineage, self.version = "", 0
        self._before = self._kept = None
        self._sums = StepSums()
        return over

    def restore(self, lineage: str, step: int) -> None:
        """The rows are those of a checkpoint from now on; members enter their world anew."""
        self.forget()
        self.lineage, self.now = lineage, Made(step, 0)

    def enter(self, lineage: str, version: int, size: int, made: Made) -> Settled[T] | Void:
        """A member of a world enters it, as all of them do before anything else.

        Args:
            made: The step of the dense parameters that all members have by now.
        """
        if not self.lineage or lineage != self.lineage:
            return Void("the rows here come from another restore, or there are none")
        if version < self.version or (version == self.version and not self._sums.is_open):
            return Void(f"world {version} is over")
        if made not in self.steps:
            return Void(f"the rows here are of {self.now}, not of {made}")
        if version > self.version:
            # The members of a world have all come to this step: no other one is wanted again.
            over = self._sums.begin(version, size)
            self.version = version
            settled = self._settle(made)
            self._before = self._kept = None
            return Settled(settled.action, settled.shares, over)
        return self._settle(made)

    def read(self, version: int, step: int) -> Settled[T] | Void:
        """A member of the world wants the rows of a step."""
        if version != self.version:
            return Void(f"world {version} is over")
        for made in self.steps:
            if made.step == step and made != self._before:
                return self._settle(made)
        return Void(f"the rows here are of {self.now}, not of step {step}")

    def bring(
        self, *, version: int, step: int, rank: int, share: T, call: int
    ) -> tuple[Settled[T] | None, Complete[T] | Waiting | Void]:
        """A member brings its share of a step; the sum is kept.

        Args:
            call: Number of the call that brings it; waits for the sum.

        Returns:
            What to do first, and what becomes of the share.
        """
        if version != self.version or not self._sums.is_open:
            return None, Void(f"world {version} is over")
        settled = self.read(version, step - 1)
        if isinstance(settled, Void):
            return None, settled
        if self._kept is not None:
            return settled, Void(f"step {step} is complete")
        outcome = self._sums.bring(version=version, step=step, rank=rank, share=share, call=call)
        if isinstance(outcome, Complete):
            self._kept = (Made(step, version), outcome.shares)
            # All members have made the step before.
            self._before = None
        return settled, outcome

    def leave(self, version: int) -> Sequence[int]:
        """A member leaves the world, which cannot go on; returns its calls, which are void."""
        return self._sums.end() if version == self.version else ()

    def _settle(self, made: Made) -> Settled[T]:
        """Makes the rows those of one of `steps`."""
        if self._kept is not None and made == self._kept[0]:
            shares = self._kept[1]
            self._before, self.now, self._kept = self.now, made, None
            return Settled("apply", shares)
        if made == self._before:
            self.now, self._before, self._kept = made, None, None
            return Settled("take_back")
        return Settled()
