"""Optimizer arithmetic on float32 records, for rows and dense vectors alike.

Rules follow Keras 3, so that touched rows move exactly as the rows of a Keras variable would;
`rowwise_adagrad` keeps the mean of a row's squared gradients instead of one accumulator a value.
All are lazy on rows: moments of a row stand still in steps whose batch does not hold it.
Constants arrive as one float32 vector (see the `CONSTANT_` indices), so that nothing here is
promoted to float64.

Rules work on `records_NR[row, start + i]` and not on slices: a slice in a loop costs two atomic
operations on its reference count, more than the arithmetic of a row. Places are unsigned, because
a signed one may be negative, and the check for that keeps a loop from being vectorised.
"""

# ruff: noqa: PLR0917 -- kernels take arrays by position; compiled functions have no keywords

import numpy as np

from ctr_pipeline.embeddings.arrays import Float32Array, Int32Array, UInt64Array
from ctr_pipeline.embeddings.compilation import kernel
from ctr_pipeline.embeddings.prefetch import prefetch

SGD = 0
ADAGRAD = 1
ADAM = 2
FTRL = 3
ROWWISE_ADAGRAD = 4
MOMENTUM = 5
NESTEROV = 6
AMSGRAD = 7

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
CONSTANT_MOMENTUM = 10
CONSTANT_SQUARES_KEPT = 11  # 1 for Adagrad's sum; less for RMSprop's moving average
CONSTANT_SQUARES_ADDED = 12
NUM_CONSTANTS = 13

# Columns of a segment's plan.
PLAN_RULE = 0
PLAN_FIRST = 1  # of the values, counted from the first value
PLAN_DIM = 2
PLAN_START = 3  # of the values, counted from the start of the record
PLAN_SLOTS = 4  # of the slots, counted from the start of the record
PLAN_COUNT_POWER = 5
NUM_PLAN_COLUMNS = 6

# The header of a record: int32 words in float32 places.
HEADER_COUNT = 0
HEADER_LAST_SEEN = 1
HEADER_WORDS = 2

_ZERO = np.float32(0)
_UNIT = np.float32(1)
_NONE = np.uint64(0)
_NEXT = np.uint64(1)
_LINE_FLOATS = np.uint64(16)
_ROWS_AHEAD = np.uint64(12)
_GRADIENTS_AHEAD = np.uint64(24)


@kernel
def _prefetch_row(
    records_NR: Float32Array, rows_U: Int32Array, u: np.uint64, end: np.uint64
) -> None:
    if u < end and rows_U[u] >= 0:
        row = np.uint64(rows_U[u])
        for column in range(_NONE, np.uint64(records_NR.shape[1]), _LINE_FLOATS):
            prefetch(records_NR, (row, column))


@kernel
def _prefetch_gradient(gradients_PW: Float32Array, occurrences: Int32Array, k: np.uint64) -> None:
    if k < np.uint64(occurrences.shape[0]):
        place = np.uint64(occurrences[k])
        width = np.uint64(gradients_PW.shape[1])
        for column in range(_NONE, width, _LINE_FLOATS):
            prefetch(gradients_PW, (place, column))
        prefetch(gradients_PW, (place, width - _NEXT))


@kernel
def _sgd(
    records_NR: Float32Array,
    row: np.uint64,
    start: np.uint64,
    dim: np.uint64,
    gradient: Float32Array,
    first: np.uint64,
    constants_SC: Float32Array,
    segment: np.uint64,
) -> None:
    rate = constants_SC[segment, CONSTANT_LEARNING_RATE]
    for i in range(dim):
        records_NR[row, start + i] -= rate * gradient[first + i]


@kernel
def _momentum(
    records_NR: Float32Array,
    row: np.uint64,
    start: np.uint64,
    slots: np.uint64,
    dim: np.uint64,
    gradient: Float32Array,
    first: np.uint64,
    constants_SC: Float32Array,
    segment: np.uint64,
    ahead: bool,
) -> None:
    """Momentum; Nesterov's takes the next step's velocity ahead."""
    rate = constants_SC[segment, CONSTANT_LEARNING_RATE]
    decay = constants_SC[segment, CONSTANT_MOMENTUM]
    for i in range(dim):
        move = rate * gradient[first + i]
        velocity = records_NR[row, slots + i] * decay - move
        records_NR[row, slots + i] = velocity
        if ahead:
            velocity = velocity * decay - move
        records_NR[row, start + i] += velocity


@kernel
def _adagrad(
    records_NR: Float32Array,
    row: np.uint64,
    start: np.uint64,
    slots: np.uint64,
    dim: np.uint64,
    gradient: Float32Array,
    first: np.uint64,
    constants_SC: Float32Array,
    segment: np.uint64,
) -> None:
    """Adagrad, and RMSprop, which differ in how squares are kept alone."""
    rate = constants_SC[segment, CONSTANT_LEARNING_RATE]
    kept = constants_SC[segment, CONSTANT_SQUARES_KEPT]
    added = constants_SC[segment, CONSTANT_SQUARES_ADDED]
    epsilon = constants_SC[segment, CONSTANT_EPSILON]
    for i in range(dim):
        g = gradient[first + i]
        square_sum = kept * records_NR[row, slots + i] + added * (g * g)
        records_NR[row, slots + i] = square_sum
        records_NR[row, start + i] -= rate * g / np.sqrt(square_sum + epsilon)


@kernel
def _rowwise_adagrad(
    records_NR: Float32Array,
    row: np.uint64,
    start: np.uint64,
    slots: np.uint64,
    dim: np.uint64,
    gradient: Float32Array,
    first: np.uint64,
    constants_SC: Float32Array,
    segment: np.uint64,
) -> None:
    rate = constants_SC[segment, CONSTANT_LEARNING_RATE]
    epsilon = constants_SC[segment, CONSTANT_EPSILON]
    square_sum = _ZERO
    for i in range(dim):
        g = gradient[first + i]
        square_sum += g * g
    total = records_NR[row, slots] + square_sum / np.float32(dim)
    records_NR[row, slots] = total
    root = np.sqrt(total + epsilon)
    for i in range(dim):
        records_NR[row, start + i] -= rate * gradient[first + i] / root


@kernel
def _adam(
    records_NR: Float32Array,
    row: np.uint64,
    start: np.uint64,
    slots: np.uint64,
    dim: np.uint64,
    gradient: Float32Array,
    first: np.uint64,
    constants_SC: Float32Array,
    segment: np.uint64,
    amsgrad: bool,
) -> None:
    """Adam; AMSGrad divides by the largest second moment so far."""
    rate = constants_SC[segment, CONSTANT_ADAM_RATE]
    share_1 = constants_SC[segment, CONSTANT_ONE_MINUS_BETA_1]
    share_2 = constants_SC[segment, CONSTANT_ONE_MINUS_BETA_2]
    epsilon = constants_SC[segment, CONSTANT_EPSILON]
    velocities = slots + dim
    largest = velocities + dim
    for i in range(dim):
        g = gradient[first + i]
        m = records_NR[row, slots + i]
        v = records_NR[row, velocities + i]
        m += (g - m) * share_1
        v += (g * g - v) * share_2
        records_NR[row, slots + i] = m
        records_NR[row, velocities + i] = v
        if amsgrad:
            # Not `max`, which would drop a NaN.
            if v <= records_NR[row, largest + i]:  # noqa: PLR1730
                v = records_NR[row, largest + i]
            records_NR[row, largest + i] = v
        records_NR[row, start + i] -= m * rate / (np.sqrt(v) + epsilon)


@kernel
def _ftrl(
    records_NR: Float32Array,
    row: np.uint64,
    start: np.uint64,
    slots: np.uint64,
    dim: np.uint64,
    gradient: Float32Array,
    first: np.uint64,
    constants_SC: Float32Array,
    segment: np.uint64,
) -> None:
    inverse_rate = constants_SC[segment, CONSTANT_INVERSE_RATE]
    l1 = constants_SC[segment, CONSTANT_L1]
    two_l2 = constants_SC[segment, CONSTANT_TWO_L2]
    linears = slots + dim
    for i in range(dim):
        g = gradient[first + i]
        old_sum = records_NR[row, slots + i]
        square_sum = old_sum + g * g
        root = np.sqrt(square_sum)
        records_NR[row, slots + i] = square_sum
        change = (root - np.sqrt(old_sum)) * inverse_rate * records_NR[row, start + i]
        z = records_NR[row, linears + i] + (g - change)
        records_NR[row, linears + i] = z
        clipped = min(max(z, -l1), l1)
        quadratic = root * inverse_rate + two_l2
        # Without a gradient, accumulator and L2 there is nothing to divide and nothing to move;
        # NaN is no such case.
        if not quadratic <= _ZERO:
            records_NR[row, start + i] = (clipped - z) / quadratic


@kernel
def _step_segment(
    records_NR: Float32Array,
    row: np.uint64,
    num_occurrences: np.float64,
    count: np.float64,
    gradient: Float32Array,
    plan_SP: UInt64Array,
    constants_SC: Float32Array,
    segment: np.uint64,
) -> None:
    """Adds L2 to a row's summed gradient, in place, scales it and moves one segment by it."""
    rule = plan_SP[segment, PLAN_RULE]
    first = plan_SP[segment, PLAN_FIRST]
    dim = plan_SP[segment, PLAN_DIM]
    start = plan_SP[segment, PLAN_START]
    slots = plan_SP[segment, PLAN_SLOTS]
    scale = constants_SC[segment, CONSTANT_GRADIENT_SCALE]
    strength = constants_SC[segment, CONSTANT_L2_STRENGTH]
    if strength > _ZERO:
        weight = np.float64(strength) * num_occurrences
        for _ in range(plan_SP[segment, PLAN_COUNT_POWER]):
            weight /= count
        shrink = np.float32(weight)
        for i in range(dim):
            total = gradient[first + i] + shrink * records_NR[row, start + i]
            gradient[first + i] = total * scale
    elif scale != _UNIT:
        for i in range(dim):
            gradient[first + i] *= scale
    if rule == ADAM or rule == AMSGRAD:  # noqa: PLR1714, SIM109 -- sets cost a kernel more
        amsgrad = rule == AMSGRAD
        _adam(records_NR, row, start, slots, dim, gradient, first, constants_SC, segment, amsgrad)
    elif rule == ADAGRAD:
        _adagrad(records_NR, row, start, slots, dim, gradient, first, constants_SC, segment)
    elif rule == SGD:
        _sgd(records_NR, row, start, dim, gradient, first, constants_SC, segment)
    elif rule == ROWWISE_ADAGRAD:
        _rowwise_adagrad(records_NR, row, start, slots, dim, gradient, first, constants_SC, segment)
    elif rule == MOMENTUM or rule == NESTEROV:  # noqa: PLR1714, SIM109 -- as above
        ahead = rule == NESTEROV
        _momentum(records_NR, row, start, slots, dim, gradient, first, constants_SC, segment, ahead)
    elif constants_SC[segment, CONSTANT_LEARNING_RATE] > _ZERO:
        # FTRL divides by the rate; a schedule that has reached 0 leaves the row as it is.
        _ftrl(records_NR, row, start, slots, dim, gradient, first, constants_SC, segment)


@kernel
def update_rows_by_occurrence(
    records_NR: Float32Array,
    headers_NR: Int32Array,
    rows_U: Int32Array,
    offsets: Int32Array,
    occurrences: Int32Array,
    leading_PA: Float32Array,
    trailing_PB: Float32Array,
    plan_SP: UInt64Array,
    constants_SC: Float32Array,
    step: int,
    begin: int,
    end: int,
) -> None:
    """Sums each unique row's gradients in the order of its occurrences and updates the row.

    The gradients of a row's first A values and of its other B ones come in two arrays.
    """
    num_leading = np.uint64(leading_PA.shape[1])
    num_trailing = np.uint64(trailing_PB.shape[1])
    num_segments = np.uint64(plan_SP.shape[0])
    sum_W = np.empty(leading_PA.shape[1] + trailing_PB.shape[1], np.float32)
    last = np.uint64(end)
    for u in range(np.uint64(begin), last):
        _prefetch_row(records_NR, rows_U, u + _ROWS_AHEAD, last)
        if rows_U[u] < 0:
            continue
        row = np.uint64(rows_U[u])
        earliest = np.uint64(offsets[u])
        after = np.uint64(offsets[u + _NEXT])
        place = np.uint64(occurrences[earliest])
        _prefetch_gradient(trailing_PB, occurrences, earliest + _GRADIENTS_AHEAD)
        for i in range(num_leading):
            sum_W[i] = leading_PA[place, i]
        for i in range(num_trailing):
            sum_W[num_leading + i] = trailing_PB[place, i]
        for k in range(earliest + _NEXT, after):
            place = np.uint64(occurrences[k])
            _prefetch_gradient(trailing_PB, occurrences, k + _GRADIENTS_AHEAD)
            for i in range(num_leading):
                sum_W[i] += leading_PA[place, i]
            for i in range(num_trailing):
                sum_W[num_leading + i] += trailing_PB[place, i]
        num_occurrences = np.float64(after - earliest)
        count = max(np.float64(headers_NR[row, HEADER_COUNT]), 1.0)
        for segment in range(num_segments):
            _step_segment(
                records_NR, row, num_occurrences, count, sum_W, plan_SP, constants_SC, segment
            )
        headers_NR[row, HEADER_LAST_SEEN] = step


@kernel
def update_rows_by_sum(
    records_NR: Float32Array,
    headers_NR: Int32Array,
    rows_U: Int32Array,
    num_occurrences_U: Int32Array,
    sums_UW: Float32Array,
    plan_SP: UInt64Array,
    constants_SC: Float32Array,
    step: int,
    begin: int,
    end: int,
) -> None:
    """Updates rows by gradients that are summed already."""
    width = np.uint64(sums_UW.shape[1])
    num_segments = np.uint64(plan_SP.shape[0])
    sum_W = np.empty(sums_UW.shape[1], np.float32)
    last = np.uint64(end)
    for u in range(np.uint64(begin), last):
        _prefetch_row(records_NR, rows_U, u + _ROWS_AHEAD, last)
        if rows_U[u] < 0:
            continue
        row = np.uint64(rows_U[u])
        for i in range(width):
            sum_W[i] = sums_UW[u, i]
        num_occurrences = np.float64(num_occurrences_U[u])
        count = max(np.float64(headers_NR[row, HEADER_COUNT]), 1.0)
        for segment in range(num_segments):
            _step_segment(
                records_NR, row, num_occurrences, count, sum_W, plan_SP, constants_SC, segment
            )
        headers_NR[row, HEADER_LAST_SEEN] = step


@kernel
def update_vector(
    record_1R: Float32Array,
    gradient: Float32Array,
    plan_SP: UInt64Array,
    constants_SC: Float32Array,
) -> None:
    """Updates a dense vector, one record of one segment; the gradient is overwritten."""
    _step_segment(record_1R, np.uint64(0), 1.0, 1.0, gradient, plan_SP, constants_SC, np.uint64(0))
