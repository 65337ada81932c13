"""`vocabulary`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from ctr_pipeline.errors import PreprocessingError
from ctr_pipeline.transforms.base import (
    Fitting,
    IdKernel,
    IdStep,
    IdTransform,
    Needs,
    TransformKind,
    VocabularyNeed,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from ctr_pipeline.kernels.arrow_values import TextColumn


class VocabularyStep(IdStep):
    """Position in a vocabulary, else an out-of-vocabulary id.

    Attributes:
        file: Path below the run folder.
        size: Values in the file.
        oov_buckets: Ids from `size` on, shared by other values.
        missing_id: Id of NULL and of the empty text.
    """

    name: Literal["vocabulary"] = "vocabulary"
    file: str
    size: int
    oov_buckets: int

    @property
    def files(self) -> tuple[str, ...]:
        """The vocabulary."""
        return (self.file,)

    @property
    def unknown_ids(self) -> range:
        """The out-of-vocabulary ids."""
        return range(self.size, self.size + self.oov_buckets)

    def load_values(self, folder: Path) -> "pa.Array":
        """Loads the vocabulary, large_binary [size].

        Raises:
            PreprocessingError: The file is missing, or not the one the plan was fitted with.
        """
        from ctr_pipeline.transforms.shared.vocabulary_files import load_vocabulary

        path = folder / self.file
        values = load_vocabulary(path)
        if len(values) != self.size:
            raise PreprocessingError(
                f"the vocabulary has {len(values):,} values, the plan was fitted with "
                f"{self.size:,}",
                place=str(path),
                remedy="Delete it and run 'ctrpipe train --resume' with the config of the run",
            )
        return values

    def open_kernel(self, folder: Path) -> IdKernel:
        """Returns a kernel of a text column.

        Raises:
            PreprocessingError: The file is missing, or not the one the plan was fitted with.
        """
        from ctr_pipeline.kernels.text_ids import lookup_ids, vocabulary_table

        table = vocabulary_table(self.load_values(folder), source=str(folder / self.file))

        def kernel(text: "TextColumn", out: np.ndarray) -> None:
            lookup_ids(
                text, table, oov_buckets=self.oov_buckets, missing_id=self.missing_id, out=out
            )

        return kernel


class Vocabulary(IdTransform):
    """The index of the value among the frequent values of the training rows.

    Rarer and unseen values share the out-of-vocabulary ids; missing values have their own id.
    """

    kind: ClassVar[TransformKind] = TransformKind.TEXT_TO_ID
    example: ClassVar[str] = "{columns: C1..C26, id: {vocabulary: {min_count: 10, oov_buckets: 4}}}"
    short_form: ClassVar[dict[str, Any]] = {"min_count": 2}
    name: Literal["vocabulary"] = "vocabulary"
    min_count: int = Field(default=2, ge=1, description="Keep values seen this often in training.")
    max_size: int | None = Field(
        default=None, ge=1, description="Keep at most so many values, the most frequent; null: all."
    )
    oov_buckets: int = Field(default=1, ge=1, description="Ids shared by all other values.")

    @property
    def needs(self) -> Needs:
        """The frequent values."""
        wanted = VocabularyNeed(min_count=self.min_count, max_size=self.max_size)
        return Needs(vocabulary=wanted, words=("values with counts",))

    @property
    def is_of_value(self) -> bool:
        """Each frequent value has its id."""
        return True

    def ids_before_fit(self) -> int | None:
        """The most values, the ids that others share, and the missing id."""
        return None if self.max_size is None else self.max_size + self.oov_buckets + 1

    def fit(self, fitting: Fitting) -> tuple[IdStep, int]:
        """Fits the vocabulary of the column."""
        known = fitting.statistics.vocabularies.get(fitting.column)
        if known is None:
            raise fitting.stale("no vocabulary")
        if (known.min_count, known.max_size) != (self.min_count, self.max_size):
            raise fitting.stale("a vocabulary of another min_count or max_size")
        if not (fitting.folder / known.file).is_file():
            raise ValueError(f"there is no vocabulary file {fitting.folder / known.file}")
        missing_id = known.size + self.oov_buckets
        step = VocabularyStep(
            file=known.file,
            size=known.size,
            oov_buckets=self.oov_buckets,
            missing_id=missing_id,
        )
        return step, missing_id + 1
