"""How far the records of an elastic run are read; pure.

The members of a world read a sequence of records in lockstep: a step takes the next ones, so what
is finished is always the beginning of the sequence, and one number says how much. A world takes all
records from there on. When the next one takes them, they are its own: what the earlier one had not
finished is read again, and what it still reports is refused.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class RecordPosition:
    """How far the records of one name are read.

    Attributes:
        content: What records they are, in words; the same whoever reads them.
        world: Version of the world that reads them.
        position: Records of finished steps.
        has_begun: Whether that world has said where it begins.
    """

    content: str
    world: int
    position: int = 0
    has_begun: bool = False


class OtherRecordsError(Exception):
    """Records of this name are other ones."""


@dataclass
class RecordPositions:
    """How far all records of a job are read.

    Attributes:
        by_name: Starts with what a ledger has.
    """

    by_name: dict[str, RecordPosition] = field(default_factory=dict)

    @property
    def newest_world(self) -> int:
        """The newest world that ever read records; 0 if none did."""
        return max((known.world for known in self.by_name.values()), default=0)

    def take(self, name: str, content: str, world: int) -> RecordPosition | None:
        """A member of the current world takes records.

        Returns:
            How far they are read; None if a newer world has taken them.

        Raises:
            OtherRecordsError: Records of this name have another content.
        """
        known = self.by_name.get(name)
        if known is None:
            known = RecordPosition(content, world)
        if known.content != content:
            raise OtherRecordsError(
                f"'{name}' are {content} here, and {known.content} where they were read before"
            )
        if known.world > world:
            return None
        if known.world < world:
            known = RecordPosition(content, world, known.position)
        self.by_name[name] = known
        return known

    def report(self, name: str, world: int, position: int, *, begins: bool) -> bool:
        """A member says how many records are finished.

        Args:
            begins: It has finished none yet, and begins here. The first one of a world to say so
                decides, and may go back to where a checkpoint was taken.

        Returns:
            Whether the world may go on; False if another one has taken the records.
        """
        known = self.by_name.get(name)
        if known is None or known.world != world:
            return False
        if begins and known.has_begun:
            return True
        if not begins:
            position = max(position, known.position)
        self.by_name[name] = RecordPosition(known.content, world, position, has_begun=True)
        return True
