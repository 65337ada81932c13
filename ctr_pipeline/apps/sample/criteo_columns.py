"""What the columns of the Criteo Display Advertising Challenge look like.

Distinct values of C1..C26 over the 45,840,617 training rows are the table sizes that DLRM-style
trainings of this data set use (for example real-zhangzhe/wukong, `exp/
train_wukong_on_criteo_kaggle_dataset.py`); where a column has missing cells, "missing" is taken to
be one of them. Missing rates are within 0.004 of those counted in 110,000 training rows, where
columns of one missing group are empty in exactly the same rows. Skews of the categories and
medians and ninth deciles of the numbers are rounded from the same count; largest values and effects
are plausible sizes, not counts.
"""

import math
from dataclasses import dataclass

BASE_RATE = 0.256
"""Share of clicks in the challenge's training rows, rounded."""


@dataclass(frozen=True)
class SampledNumbers:
    """An integer column: log-logistic, rounded down.

    Attributes:
        median: Median before rounding down.
        ninth_decile: 90 % quantile before rounding down.
        maximum: Larger values become this.
        offset: Added to the result; negative where values below 0 occur.
        missing_group: Columns of one group are empty in the same rows.
        effect: Standard deviation of the column's part of the logit, about.
    """

    median: float
    ninth_decile: float
    maximum: int
    missing_group: str
    effect: float
    offset: int = 0

    @property
    def log_scale(self) -> float:
        """Exponent of the odds `u / (1 - u)`; their 90 % quantile is 9."""
        return math.log(self.ninth_decile / self.median) / math.log(9.0)


@dataclass(frozen=True)
class CategoryColumn:
    """A categorical column with Zipf-Mandelbrot frequencies.

    Attributes:
        cardinality: Distinct values, "missing" among them where it occurs.
        exponent: How fast frequencies fall with the rank.
        flatness: How many of the first ranks are about equally frequent.
        missing_group: Columns of one group are empty in the same rows.
        effect: Standard deviation of the frequent ids' weights in the logit.
        interaction: Standard deviation of an id's latent coordinates; 0: no interactions.
    """

    cardinality: int
    exponent: float
    flatness: float
    missing_group: str
    effect: float
    interaction: float = 0.0

    @property
    def num_values(self) -> int:
        """Distinct values that are not empty."""
        return self.cardinality - (1 if MISSING_FRACTIONS[self.missing_group] > 0 else 0)


MISSING_FRACTIONS: dict[str, float] = {
    "never": 0.0,
    "I1 I10": 0.4536,
    "I3": 0.2146,
    "I4 I13": 0.2168,
    "I5": 0.0258,
    "I6": 0.2237,
    "I7 I9 I11": 0.0433,
    "I8": 0.0005,
    "I12": 0.7651,
    "C3 C4 C12 C16 C21 C24": 0.0340,
    "C6": 0.1209,
    "C19 C20 C25 C26": 0.4401,
    "C22": 0.7625,
}
"""Share of rows in which the columns of a group are empty."""

NUMBER_COLUMNS: tuple[SampledNumbers, ...] = (
    SampledNumbers(1.4, 9, 5_775, "I1 I10", 0.25),
    SampledNumbers(4, 180, 257_675, "never", 0.15, offset=-1),
    SampledNumbers(6, 43, 65_535, "I3", 0.10),
    SampledNumbers(5, 19, 969, "I4 I13", 0.15),
    SampledNumbers(2_800, 34_000, 23_159_456, "I5", 0.20),
    SampledNumbers(32, 276, 431_037, "I6", 0.30),
    SampledNumbers(3.5, 35, 56_311, "I7 I9 I11", 0.30),
    SampledNumbers(8, 35, 6_047, "I8", 0.10),
    SampledNumbers(38, 260, 29_019, "I7 I9 I11", 0.15),
    SampledNumbers(1.05, 1.99, 11, "I1 I10", 0.10),
    SampledNumbers(2, 7, 231, "I7 I9 I11", 0.30),
    SampledNumbers(0.5, 2, 4_008, "I12", 0.10),
    SampledNumbers(5, 21, 7_393, "I4 I13", 0.15),
)
"""I1..I13."""

_TOGETHER = "C3 C4 C12 C16 C21 C24"
_SPARSE = "C19 C20 C25 C26"

CATEGORY_COLUMNS: tuple[CategoryColumn, ...] = (
    CategoryColumn(1_460, 2.0, 0, "never", 0.25, 0.22),
    CategoryColumn(583, 1.2, 2, "never", 0.35, 0.30),
    CategoryColumn(10_131_227, 1.03, 2, _TOGETHER, 0.30),
    CategoryColumn(2_202_608, 1.08, 2, _TOGETHER, 0.30),
    CategoryColumn(305, 2.4, 0, "never", 0.15, 0.22),
    CategoryColumn(24, 1.6, 0, "C6", 0.25, 0.30),
    CategoryColumn(12_517, 1.05, 8, "never", 0.30),
    CategoryColumn(633, 2.2, 0, "never", 0.20, 0.22),
    CategoryColumn(3, 3.0, 0, "never", 0.25, 0.22),
    CategoryColumn(93_145, 1.25, 0, "never", 0.30),
    CategoryColumn(5_683, 1.1, 6, "never", 0.30),
    CategoryColumn(8_351_593, 1.04, 2, _TOGETHER, 0.30),
    CategoryColumn(3_194, 1.1, 6, "never", 0.30),
    CategoryColumn(27, 1.5, 1, "never", 0.30, 0.30),
    CategoryColumn(14_992, 1.05, 10, "never", 0.30),
    CategoryColumn(5_461_306, 1.06, 2, _TOGETHER, 0.30),
    CategoryColumn(10, 1.3, 0, "never", 0.35, 0.30),
    CategoryColumn(5_652, 1.15, 4, "never", 0.35),
    CategoryColumn(2_173, 1.4, 0, _SPARSE, 0.25),
    CategoryColumn(4, 0.5, 5, _SPARSE, 0.20, 0.30),
    CategoryColumn(7_046_547, 1.05, 2, _TOGETHER, 0.30),
    CategoryColumn(18, 2.0, 0, "C22", 0.20, 0.22),
    CategoryColumn(15, 1.4, 0, "never", 0.30, 0.30),
    CategoryColumn(286_181, 1.15, 2, _TOGETHER, 0.30),
    CategoryColumn(105, 1.3, 0, _SPARSE, 0.25, 0.22),
    CategoryColumn(142_572, 1.2, 2, _SPARSE, 0.30),
)
"""C1..C26."""

NUM_NUMBERS = len(NUMBER_COLUMNS)
NUM_CATEGORIES = len(CATEGORY_COLUMNS)
COLUMN_NAMES: tuple[str, ...] = (
    "label",
    *(f"I{number}" for number in range(1, NUM_NUMBERS + 1)),
    *(f"C{number}" for number in range(1, NUM_CATEGORIES + 1)),
)
"""Column names in the order of the file, which itself has no header."""
