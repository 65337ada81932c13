"""Optimizer arithmetic on float32 slices, and its application to rows and dense vectors.

One implementation for both. Rules follow Keras 3, so that touched rows move exactly as the rows of
a Keras variable would; `rowwise_adagrad` keeps the mean of a row's squared gradients instead of one
accumulator a value. Constants arrive as one float32 vector (see the `CONSTANT_` indices), so that
nothing here is promoted to float64.
"""

# ruff: noqa: PLR0917 -- kernels take arrays by position; compiled functions have no keywords

import numpy as np

from ctr_pipeline.embeddings.arrays import Float32Array, Int32Array, Int64Array
from ctr_pipeline.embeddings.compilation import kernel

SGD = 0
ADAGRAD = 1
ADAM = 2
FTRL = 3
ROWWISE_ADAGRAD = 4

# Columns of a constants vector.
CONSTANT_LEARNING_RATE = 0
CONSTANT_ADAM_RATE = 1  # learning rate with Adam's bias correction
CONSTANT_ONE_MINUS_BETA_1 = 2
CONSTANT_ONE_MINUS_BETA_2 = 3
CONSTANT_EPSILON = 4
CONSTANT_L1 = 5
CONSTANT_TWO_L2 = 6
CONSTANT_INVERSE_RATE = 7
CONSTANT_GRADIENT_SCALE = 8  # 1 / examples for a mean, else 1
CONSTANT_L2_STRENGTH = 9
NUM_CONSTANTS = 10

# Columns of a segment's plan.
PLAN_RULE = 0
PLAN_START = 1  # of the values, counted from the first value
PLAN_DIM = 2
PLAN_SLOT_START = 3  # counted from the start of the record
PLAN_SLOT_COUNT = 4
PLAN_COUNT_POWER = 5
NUM_PLAN_COLUMNS = 6

# The header of a record: int32 words in float32 places.
HEADER_COUNT = 0
HEADER_LAST_SEEN = 1
HEADER_WORDS = 2

_ZERO = np.float32(0)


@kernel
def _copy(target: Float32Array, source: Float32Array) -> None:
    for i in range(target.shape[0]):
        target[i] = source[i]


@kernel
def _add(total: Float32Array, addend: Float32Array) -> None:
    # Its own function: the same loop written out among its callers is three times slower, since
    # the compiler then no longer sees that both are contiguous and of one length.
    for i in range(total.shape[0]):
        total[i] += addend[i]


@kernel
def _scale(gradient: Float32Array, scale: np.float32) -> None:
    for i in range(gradient.shape[0]):
        gradient[i] *= scale


@kernel
def _shrink_and_scale(
    gradient: Float32Array, values: Float32Array, shrink: np.float32, scale: np.float32
) -> None:
    for i in range(gradient.shape[0]):
        gradient[i] = (gradient[i] + shrink * values[i]) * scale


@kernel
def _sgd(values: Float32Array, gradient: Float32Array, rate: np.float32) -> None:
    for i in range(values.shape[0]):
        values[i] -= rate * gradient[i]


@kernel
def _adagrad(
    values: Float32Array,
    accumulator: Float32Array,
    gradient: Float32Array,
    rate: np.float32,
    epsilon: np.float32,
) -> None:
    for i in range(values.shape[0]):
        square_sum = accumulator[i] + gradient[i] * gradient[i]
        accumulator[i] = square_sum
        values[i] -= rate * gradient[i] / np.sqrt(square_sum + epsilon)


@kernel
def _rowwise_adagrad(
    values: Float32Array,
    accumulator: Float32Array,
    gradient: Float32Array,
    rate: np.float32,
    epsilon: np.float32,
) -> None:
    dim = values.shape[0]
    square_sum = _ZERO
    for i in range(dim):
        square_sum += gradient[i] * gradient[i]
    total = accumulator[0] + square_sum / np.float32(dim)
    accumulator[0] = total
    root = np.sqrt(total + epsilon)
    for i in range(dim):
        values[i] -= rate * gradient[i] / root


@kernel
def _adam(
    values: Float32Array,
    momentum: Float32Array,
    velocity: Float32Array,
    gradient: Float32Array,
    constants: Float32Array,
) -> None:
    rate = constants[CONSTANT_ADAM_RATE]
    keep_1 = constants[CONSTANT_ONE_MINUS_BETA_1]
    keep_2 = constants[CONSTANT_ONE_MINUS_BETA_2]
    epsilon = constants[CONSTANT_EPSILON]
    for i in range(values.shape[0]):
        m = momentum[i] + (gradient[i] - momentum[i]) * keep_1
        v = velocity[i] + (gradient[i] * gradient[i] - velocity[i]) * keep_2
        momentum[i] = m
        velocity[i] = v
        values[i] -= m * rate / (np.sqrt(v) + epsilon)


@kernel
def _ftrl(
    values: Float32Array,
    accumulator: Float32Array,
    linear: Float32Array,
    gradient: Float32Array,
    constants: Float32Array,
) -> None:
    inverse_rate = constants[CONSTANT_INVERSE_RATE]
    l1 = constants[CONSTANT_L1]
    two_l2 = constants[CONSTANT_TWO_L2]
    for i in range(values.shape[0]):
        old_root = np.sqrt(accumulator[i])
        square_sum = accumulator[i] + gradient[i] * gradient[i]
        root = np.sqrt(square_sum)
        accumulator[i] = square_sum
        z = linear[i] + gradient[i] - (root - old_root) * inverse_rate * values[i]
        linear[i] = z
        clipped = min(max(z, -l1), l1)
        quadratic = root * inverse_rate + two_l2
        # Without a gradient, accumulator and L2 there is nothing to divide and nothing to move.
        if not quadratic <= _ZERO:
            values[i] = (clipped - z) / quadratic


@kernel
def _apply_rule(
    rule: int,
    values: Float32Array,
    slots: Float32Array,
    gradient: Float32Array,
    constants: Float32Array,
) -> None:
    dim = values.shape[0]
    if rule == SGD:
        _sgd(values, gradient, constants[CONSTANT_LEARNING_RATE])
    elif rule == ADAGRAD:
        _adagrad(
            values,
            slots,
            gradient,
            constants[CONSTANT_LEARNING_RATE],
            constants[CONSTANT_EPSILON],
        )
    elif rule == ROWWISE_ADAGRAD:
        _rowwise_adagrad(
            values,
            slots,
            gradient,
            constants[CONSTANT_LEARNING_RATE],
            constants[CONSTANT_EPSILON],
        )
    elif rule == ADAM:
        _adam(values, slots[:dim], slots[dim:], gradient, constants)
    elif constants[CONSTANT_LEARNING_RATE] > _ZERO:
        # FTRL divides by the rate; a schedule that has reached 0 leaves the row as it is.
        _ftrl(values, slots[:dim], slots[dim:], gradient, constants)


@kernel
def _step_row(
    record: Float32Array,
    header: Int32Array,
    sum_W: Float32Array,
    num_occurrences: int,
    plan_SP: Int64Array,
    constants_SC: Float32Array,
    step: int,
) -> None:
    """Moves one row by its summed gradient, which is overwritten with the reduced one."""
    count = max(np.float64(header[HEADER_COUNT]), 1.0)
    for s in range(plan_SP.shape[0]):
        start = plan_SP[s, PLAN_START]
        dim = plan_SP[s, PLAN_DIM]
        slot_start = plan_SP[s, PLAN_SLOT_START]
        constants = constants_SC[s]
        gradient = sum_W[start : start + dim]
        values = record[HEADER_WORDS + start : HEADER_WORDS + start + dim]
        slots = record[slot_start : slot_start + plan_SP[s, PLAN_SLOT_COUNT]]
        scale = constants[CONSTANT_GRADIENT_SCALE]
        strength = constants[CONSTANT_L2_STRENGTH]
        if strength > _ZERO:
            power = plan_SP[s, PLAN_COUNT_POWER]
            weight = np.float64(strength) * num_occurrences
            for _ in range(power):
                weight /= count
            _shrink_and_scale(gradient, values, np.float32(weight), scale)
        elif scale != np.float32(1):
            _scale(gradient, scale)
        _apply_rule(plan_SP[s, PLAN_RULE], values, slots, gradient, constants)
    header[HEADER_LAST_SEEN] = step


@kernel
def update_rows_by_occurrence(
    records_NR: Float32Array,
    headers_NR: Int32Array,
    rows_U: Int32Array,
    offsets: Int32Array,
    occurrences: Int32Array,
    gradients_PW: Float32Array,
    plan_SP: Int64Array,
    constants_SC: Float32Array,
    step: int,
    first: int,
    last: int,
) -> None:
    """Sums each unique row's gradients in the order of its occurrences and updates the row."""
    sum_W = np.empty(gradients_PW.shape[1], np.float32)
    for u in range(first, last):
        row = rows_U[u]
        if row < 0:
            continue
        begin = offsets[u]
        end = offsets[u + 1]
        _copy(sum_W, gradients_PW[occurrences[begin]])
        for k in range(begin + 1, end):
            _add(sum_W, gradients_PW[occurrences[k]])
        _step_row(records_NR[row], headers_NR[row], sum_W, end - begin, plan_SP, constants_SC, step)


@kernel
def update_rows_by_sum(
    records_NR: Float32Array,
    headers_NR: Int32Array,
    rows_U: Int32Array,
    num_occurrences_U: Int32Array,
    sums_UW: Float32Array,
    plan_SP: Int64Array,
    constants_SC: Float32Array,
    step: int,
    first: int,
    last: int,
) -> None:
    """Updates rows by gradients that are summed already."""
    sum_W = np.empty(sums_UW.shape[1], np.float32)
    for u in range(first, last):
        row = rows_U[u]
        if row < 0:
            continue
        _copy(sum_W, sums_UW[u])
        _step_row(
            records_NR[row],
            headers_NR[row],
            sum_W,
            num_occurrences_U[u],
            plan_SP,
            constants_SC,
            step,
        )


@kernel
def update_vector(
    rule: int,
    values: Float32Array,
    slots: Float32Array,
    gradient: Float32Array,
    constants: Float32Array,
) -> None:
    """Updates a dense vector by its gradient."""
    _apply_rule(rule, values, slots, gradient, constants)
