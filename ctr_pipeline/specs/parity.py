"""The proof that an export scores as the trainer does."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class ParityProof:
    """What was compared and how far apart it was.

    Attributes:
        num_rows: Rows scored by the trainer and by both signatures.
        num_edge_rows: Rows among these that were made to be hard.
        max_difference: Largest difference of logits, by signature.
        tolerance: Largest difference allowed; see `export.parity.TOLERANCE`.
        num_not_a_number: Rows where both sides score NaN; counted as equal.
        versions: Versions of this process and, as `serving_tensorflow`, of the one that scored.
    """

    num_rows: int
    num_edge_rows: int
    max_difference: Mapping[str, float]
    tolerance: float
    num_not_a_number: int
    versions: Mapping[str, str]

    @property
    def largest_difference(self) -> float:
        """The largest of both signatures."""
        return max(self.max_difference.values())
