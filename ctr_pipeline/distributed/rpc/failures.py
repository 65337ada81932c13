"""How a call between members fails, on both sides of it; each is an answer rather than an error."""

from ctr_pipeline.errors import CtrPipelineError

_PASSING = frozenset({"bug", "master_gone", "not_ready"})
"""Refusals of this moment: a master that ends is followed by another one."""


_OF_STRANGERS = frozenset({"token", "unknown_method"})


class Refusal(Exception):  # noqa: N818
    """Raised by a handler: the caller did reach us, and trying again will not help.

    Args:
        code: One word for the caller's program, ASCII.
        message: For a person.
    """

    def __init__(self, code: str, message: str) -> None:
        self.code = code
        self.message = message
        super().__init__(f"{code}: {message}")


class PeerUnavailable(CtrPipelineError):  # noqa: N818
    """Nobody answered: unreachable, too slow, or gone meanwhile. Trying again may help."""


class CallRefused(CtrPipelineError):  # noqa: N818
    """The peer answered no; trying again does not help, unless `may_pass`.

    Args:
        code: The code of its `Refusal`, or one of `token`, `version`, `malformed`, `too_large`,
            `unknown_method`, `bug`.
        message: Its reason.
        place: Whom we asked.
    """

    def __init__(
        self, code: str, message: str, *, place: str | None = None, remedy: str | None = None
    ) -> None:
        self.code = code
        super().__init__(message, place=place, remedy=remedy)

    @property
    def is_fault_of_peer(self) -> bool:
        """Whether the peer failed at what it was asked, rather than refuse what was sent."""
        return self.may_pass or self.code == "failed"

    def may_pass_for(self, *, answered_before: bool) -> bool:
        """As `may_pass`, for a caller whom the peer has answered before, or never.

        A peer that has is known to be of the job. If it refuses the token or the method after all,
        then a stranger has its address by now, and the peer may be back at another one.
        """
        return self.may_pass or (answered_before and self.code in _OF_STRANGERS)

    @property
    def may_pass(self) -> bool:
        """Whether the answer may be another one later, from this peer or from its successor."""
        return self.code in _PASSING
