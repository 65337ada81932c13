"""Parts of points in time, and ages.

Points in time are those of `kernels.time_parsing`. All arithmetic is in whole numbers, so that
TensorFlow's is the same. Calendars are computed as H. Hinnant shows, "chrono-compatible low-level
date algorithms" (2013), civil_from_days.
"""

import numpy as np

from ctr_pipeline.kernels.time_parsing import NO_TIME


def part_ids(
    seconds: np.ndarray,
    part: str,
    utc_offset_minutes: int,
    *,
    missing_id: int,
    out: np.ndarray | None = None,
) -> np.ndarray:
    """The part of each point in time by a clock that is ahead of UTC by so many minutes.

    Weeks begin on Monday. Days and months count from 0. Where there is no time the id is
    `missing_id`.
    """
    local = seconds + 60 * utc_offset_minutes
    days, minutes = local // 86_400, local % 86_400 // 60
    weekday = (days + 3) % 7
    if part == "minute":
        ids = minutes % 60
    elif part == "hour":
        ids = minutes // 60
    elif part == "hour_of_week":
        ids = 24 * weekday + minutes // 60
    elif part == "weekday":
        ids = weekday
    elif part == "is_weekend":
        ids = weekday // 5
    else:
        month, day = _month_and_day(days)
        ids = day if part == "day" else month
    found: np.ndarray = np.where(seconds == NO_TIME, missing_id, ids)
    if out is None:
        return found
    out[:] = found
    return out


def ages(seconds: np.ndarray, at_seconds: int) -> np.ndarray:
    """Days from each point in time to another, float64; NaN where there is none."""
    days = (at_seconds - seconds).astype(np.float64) / 86_400.0
    return np.where(seconds == NO_TIME, np.nan, days)


def _month_and_day(days: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Month and day of the month, both from 0, of days since 1970."""
    shifted = days + 719_468
    of_era = shifted % 146_097
    year = (of_era - of_era // 1460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * year + year // 4 - year // 100)
    from_march = (5 * of_year + 2) // 153
    return (from_march + 2) % 12, of_year - (153 * from_march + 2) // 5
