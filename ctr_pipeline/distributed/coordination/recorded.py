"""Objects of which a job's ledger holds some fields, and which notice that these have changed."""

from typing import Any, ClassVar

_ABSENT = object()


class Recorded:
    """Base of dataclasses some of whose fields the ledger holds.

    Setting such a field to another value marks the object as changed, so that no caller has to say
    so and none can forget it. A field that is changed in place is not noticed: set it anew.

    Attributes:
        durable: Fields whose change must be on disk before anybody acts on it.
        lazy: Fields whose change may be written with a later commit. Fields in neither set may
            be written along with these.
        is_changed: A field of either set has changed since `take_change`.
        is_urgent: Among them a durable one.
    """

    durable: ClassVar[frozenset[str]] = frozenset()
    lazy: ClassVar[frozenset[str]] = frozenset()
    is_changed = False
    is_urgent = False

    def __post_init__(self) -> None:
        """A new object has not changed."""
        self.take_change()

    def __setattr__(self, name: str, value: Any) -> None:
        is_durable = name in self.durable
        if (is_durable or name in self.lazy) and getattr(self, name, _ABSENT) != value:
            self.__dict__["is_changed"] = True
            self.__dict__["is_urgent"] = self.is_urgent or is_durable
        super().__setattr__(name, value)

    def take_change(self) -> tuple[bool, bool]:
        """Whether it has changed since the last call, and whether urgently."""
        found = self.is_changed, self.is_urgent
        self.__dict__["is_changed"] = self.__dict__["is_urgent"] = False
        return found
