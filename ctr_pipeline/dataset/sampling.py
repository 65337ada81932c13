"""Down-sampling of the training rows: every row of label 1, and each of label 0 with one chance.

Among the rows that are left, the odds of label 1 are 1 / chance times as high as among all rows,
whatever the features are. So the model is trained on its logit plus the log of that and is itself
one of all rows: nothing has to be corrected afterwards. This is the prior correction of King & Zeng
2001, "Logistic regression in rare events data", section 4.1, as an offset of training; He et al.
2014, "Practical lessons from predicting clicks on ads at Facebook", section 6.3, correct the
predictions instead: p / (p + (1 - p) / w) is the same logit, less the log of 1 / w.
"""

import math

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict

from ctr_pipeline.config.models import Config
from ctr_pipeline.dataset.order import mix
from ctr_pipeline.dataset.splits import random_fractions

# Keeps these draws apart from those of the random split, which have the same seed.
_PURPOSE = 0x6E656761746976


class NegativeSampling(BaseModel):
    """Draws rows of label 0; a function of the seed and of a row's number in the training split.

    Attributes:
        negatives: Chance of each row of label 0, in (0, 1].
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    negatives: float
    seed: int

    @property
    def training_offset(self) -> float:
        """What the logit of a drawn row is above that of the same row among all rows."""
        return -math.log(self.negatives)

    def is_drawn(self, first_row: int, is_positive: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Which of the rows from `first_row` on are trained on.

        Args:
            first_row: Number of the first row in the training split, from 0.
            is_positive: bool [N], whether the label is 1.
        """
        places = random_fractions(first_row, len(is_positive), mix(self.seed, _PURPOSE))
        return is_positive | (places < self.negatives)

    def expected_rows(self, num_rows: int, num_positive: int) -> int:
        """About how many of some rows are drawn."""
        return num_positive + round(self.negatives * (num_rows - num_positive))


def sampling_of(config: Config) -> NegativeSampling | None:
    """How training rows are drawn; None if all are trained on."""
    negatives = config.data.sample.negatives
    if negatives == 1.0:
        return None
    return NegativeSampling(negatives=negatives, seed=config.train.seed)
