"""The schedule that multiplies every learning rate."""

import math

from ctr_pipeline.specs.course import LearningRateSchedule


def learning_rate_factor(schedule: LearningRateSchedule, step: int) -> float:
    """Computes the factor of one step.

    Args:
        schedule: The `schedule:` section.
        step: Number of the step, from 1.

    Returns:
        A number in (0, 1] during warm-up and in [floor, 1] afterwards. Warm-up steps do not count
        towards `decay_steps`.
    """
    if step <= schedule.warmup_steps:
        return step / (schedule.warmup_steps + 1)
    if schedule.decay_steps is None:
        return 1.0
    progress = (step - schedule.warmup_steps) / schedule.decay_steps
    if schedule.name == "cosine":
        # Loshchilov and Hutter 2017 (arXiv:1608.03983), Eq. (5) without restarts.
        factor = 0.5 * (1.0 + math.cos(math.pi * min(progress, 1.0)))
        return schedule.floor + (1.0 - schedule.floor) * factor
    if schedule.name == "exponential":
        return max(schedule.floor, math.pow(schedule.decay_rate, progress))
    return 1.0
