"""Optimizer arithmetic on float32 records, for rows and dense vectors alike.

Rules follow Keras 3, so that touched rows move exactly as the rows of a Keras variable would;
`rowwise_adagrad` keeps the mean of a row's squared gradients instead of one accumulator a value.
All are lazy on rows: moments of a row stand still in steps whose batch does not hold it.
Constants arrive as one float32 vector (see the `CONSTANT_` indices), so that nothing here is
promoted to float64.

A rule is written once, as a function of values, and used for eight of them side by side and for
those that remain (see `kernels.simd`). It is given addresses: of the values, of their slots, of the
gradient. Places are unsigned, because a signed one may be negative, which has to be checked.
"""

# ruff: noqa: PLR0917 -- kernels take arrays by position; compiled functions have no keywords

from typing import Any

import numpy as np

from ctr_pipeline.embeddings.arrays import Float32Array, Int32Array, Int64Array, UInt64Array
from ctr_pipeline.kernels.compilation import inlined, kernel
from ctr_pipeline.kernels.simd import (
    NUM_LANES,
    Address,
    address_of,
    after,
    copy_values,
    in_lanes,
    load_lanes,
    prefetch_values,
    square_root,
    store_lanes,
    sum_occurrences,
)
from ctr_pipeline.specs.table import ID_BITS

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
_ID_BITS = np.uint64(ID_BITS)
_NEXT = np.uint64(1)
_ROWS_AHEAD = np.uint64(12)
_GRADIENTS_AHEAD = np.uint64(24)


@inlined
def _sgd_values(value: Any, g: Any, rate: np.float32) -> Any:
    return value - rate * g


@inlined
def _sgd(value: Address, gradient: Address, dim: np.uint64, constants: Address) -> None:
    rate = constants[CONSTANT_LEARNING_RATE]
    whole = in_lanes(dim)
    for i in range(_NONE, whole, NUM_LANES):
        store_lanes(value, i, _sgd_values(load_lanes(value, i), load_lanes(gradient, i), rate))
    for i in range(whole, dim):
        value[i] = _sgd_values(value[i], gradient[i], rate)


@inlined
def _momentum_values(
    value: Any, velocity: Any, g: Any, rate: np.float32, decay: np.float32, ahead: bool
) -> Any:
    """Momentum; Nesterov's takes the next step's velocity ahead."""
    move = rate * g
    velocity = velocity * decay - move
    if ahead:
        return value + (velocity * decay - move), velocity
    return value + velocity, velocity


@inlined
def _momentum(
    value: Address,
    slots: Address,
    gradient: Address,
    dim: np.uint64,
    constants: Address,
    ahead: bool,
) -> None:
    rate = constants[CONSTANT_LEARNING_RATE]
    decay = constants[CONSTANT_MOMENTUM]
    whole = in_lanes(dim)
    for i in range(_NONE, whole, NUM_LANES):
        moved, velocity = _momentum_values(
            load_lanes(value, i), load_lanes(slots, i), load_lanes(gradient, i), rate, decay, ahead
        )
        store_lanes(slots, i, velocity)
        store_lanes(value, i, moved)
    for i in range(whole, dim):
        value[i], slots[i] = _momentum_values(value[i], slots[i], gradient[i], rate, decay, ahead)


@inlined
def _adagrad_values(
    value: Any,
    square_sum: Any,
    g: Any,
    rate: np.float32,
    kept: np.float32,
    added: np.float32,
    epsilon: np.float32,
) -> Any:
    """Adagrad, and RMSprop, which differ in how squares are kept alone."""
    square_sum = kept * square_sum + added * (g * g)
    return value - rate * g / square_root(square_sum + epsilon), square_sum


@inlined
def _adagrad(
    value: Address, slots: Address, gradient: Address, dim: np.uint64, constants: Address
) -> None:
    rate = constants[CONSTANT_LEARNING_RATE]
    kept = constants[CONSTANT_SQUARES_KEPT]
    added = constants[CONSTANT_SQUARES_ADDED]
    epsilon = constants[CONSTANT_EPSILON]
    whole = in_lanes(dim)
    for i in range(_NONE, whole, NUM_LANES):
        moved, square_sum = _adagrad_values(
            load_lanes(value, i),
            load_lanes(slots, i),
            load_lanes(gradient, i),
            rate,
            kept,
            added,
            epsilon,
        )
        store_lanes(slots, i, square_sum)
        store_lanes(value, i, moved)
    for i in range(whole, dim):
        value[i], slots[i] = _adagrad_values(
            value[i], slots[i], gradient[i], rate, kept, added, epsilon
        )


@inlined
def _rowwise_adagrad(
    value: Address, slots: Address, gradient: Address, dim: np.uint64, constants: Address
) -> None:
    rate = constants[CONSTANT_LEARNING_RATE]
    epsilon = constants[CONSTANT_EPSILON]
    square_sum = _ZERO
    for i in range(dim):
        square_sum += gradient[i] * gradient[i]
    total = slots[_NONE] + square_sum / np.float32(dim)
    slots[_NONE] = total
    root = square_root(total + epsilon)
    for i in range(dim):
        value[i] -= rate * gradient[i] / root


@inlined
def _moments(m: Any, v: Any, g: Any, share_1: np.float32, share_2: np.float32) -> Any:
    """First and second moment after a gradient."""
    m += (g - m) * share_1
    v += (g * g - v) * share_2
    return m, v


@inlined
def _adam_values(
    value: Any,
    m: Any,
    v: Any,
    g: Any,
    rate: np.float32,
    share_1: np.float32,
    share_2: np.float32,
    epsilon: np.float32,
) -> Any:
    m, v = _moments(m, v, g, share_1, share_2)
    return value - m * rate / (square_root(v) + epsilon), m, v


@inlined
def _adam(
    value: Address, slots: Address, gradient: Address, dim: np.uint64, constants: Address
) -> None:
    rate = constants[CONSTANT_ADAM_RATE]
    share_1 = constants[CONSTANT_ONE_MINUS_BETA_1]
    share_2 = constants[CONSTANT_ONE_MINUS_BETA_2]
    epsilon = constants[CONSTANT_EPSILON]
    second = after(slots, dim)
    whole = in_lanes(dim)
    for i in range(_NONE, whole, NUM_LANES):
        moved, m, v = _adam_values(
            load_lanes(value, i),
            load_lanes(slots, i),
            load_lanes(second, i),
            load_lanes(gradient, i),
            rate,
            share_1,
            share_2,
            epsilon,
        )
        store_lanes(slots, i, m)
        store_lanes(second, i, v)
        store_lanes(value, i, moved)
    for i in range(whole, dim):
        value[i], slots[i], second[i] = _adam_values(
            value[i], slots[i], second[i], gradient[i], rate, share_1, share_2, epsilon
        )


@inlined
def _amsgrad(
    value: Address, slots: Address, gradient: Address, dim: np.uint64, constants: Address
) -> None:
    """Adam that divides by the largest second moment so far."""
    rate = constants[CONSTANT_ADAM_RATE]
    share_1 = constants[CONSTANT_ONE_MINUS_BETA_1]
    share_2 = constants[CONSTANT_ONE_MINUS_BETA_2]
    epsilon = constants[CONSTANT_EPSILON]
    second = after(slots, dim)
    largest = after(second, dim)
    for i in range(dim):
        m, v = _moments(slots[i], second[i], gradient[i], share_1, share_2)
        slots[i] = m
        second[i] = v
        # Not `max`, which would drop a NaN.
        if v <= largest[i]:  # noqa: PLR1730
            v = largest[i]
        largest[i] = v
        value[i] -= m * rate / (square_root(v) + epsilon)


@inlined
def _ftrl(
    value: Address, slots: Address, gradient: Address, dim: np.uint64, constants: Address
) -> None:
    inverse_rate = constants[CONSTANT_INVERSE_RATE]
    l1 = constants[CONSTANT_L1]
    two_l2 = constants[CONSTANT_TWO_L2]
    linears = after(slots, dim)
    for i in range(dim):
        g = gradient[i]
        old_sum = slots[i]
        square_sum = old_sum + g * g
        root = square_root(square_sum)
        slots[i] = square_sum
        change = (root - square_root(old_sum)) * inverse_rate * value[i]
        z = linears[i] + (g - change)
        linears[i] = z
        clipped = min(max(z, -l1), l1)
        quadratic = root * inverse_rate + two_l2
        # Without a gradient, accumulator and L2 there is nothing to divide and nothing to move;
        # NaN is no such case.
        if not quadratic <= _ZERO:
            value[i] = (clipped - z) / quadratic


@inlined
def _step_segment(
    record: Address,
    num_occurrences: np.float64,
    count: np.float64,
    sums: Address,
    plan: Address,
    constants: Address,
) -> None:
    """Adds L2 to a row's summed gradient, in place, scales it and moves one segment by it."""
    rule = plan[PLAN_RULE]
    dim = plan[PLAN_DIM]
    gradient = after(sums, plan[PLAN_FIRST])
    value = after(record, plan[PLAN_START])
    slots = after(record, plan[PLAN_SLOTS])
    scale = constants[CONSTANT_GRADIENT_SCALE]
    strength = constants[CONSTANT_L2_STRENGTH]
    whole = in_lanes(dim)
    if strength > _ZERO:
        weight = np.float64(strength) * num_occurrences
        for _ in range(plan[PLAN_COUNT_POWER]):
            weight /= count
        shrink = np.float32(weight)
        for i in range(_NONE, whole, NUM_LANES):
            total = load_lanes(gradient, i) + shrink * load_lanes(value, i)
            store_lanes(gradient, i, total * scale)
        for i in range(whole, dim):
            gradient[i] = (gradient[i] + shrink * value[i]) * scale
    elif scale != _UNIT:
        for i in range(_NONE, whole, NUM_LANES):
            store_lanes(gradient, i, load_lanes(gradient, i) * scale)
        for i in range(whole, dim):
            gradient[i] *= scale
    if rule == ADAM:
        _adam(value, slots, gradient, dim, constants)
    elif rule == ADAGRAD:
        _adagrad(value, slots, gradient, dim, constants)
    elif rule == SGD:
        _sgd(value, gradient, dim, constants)
    elif rule == ROWWISE_ADAGRAD:
        _rowwise_adagrad(value, slots, gradient, dim, constants)
    elif rule == AMSGRAD:
        _amsgrad(value, slots, gradient, dim, constants)
    elif rule == MOMENTUM or rule == NESTEROV:  # noqa: PLR1714, SIM109 -- sets cost a kernel more
        _momentum(value, slots, gradient, dim, constants, rule == NESTEROV)
    elif constants[CONSTANT_LEARNING_RATE] > _ZERO:
        # FTRL divides by the rate; a schedule that has reached 0 leaves the row as it is.
        _ftrl(value, slots, gradient, dim, constants)


@kernel
def update_rows_by_occurrence(
    records_NR: Float32Array,
    headers_NR: Int32Array,
    keys_U: Int64Array,
    rows_U: Int32Array,
    offsets: Int32Array,
    occurrences: Int32Array,
    leading_PA: Float32Array,
    trailing_PB: Float32Array,
    groups_T: UInt64Array,
    plan_GSP: UInt64Array,
    constants_GSC: Float32Array,
    step: int,
    begin: int,
    end: int,
) -> None:
    """Sums each unique row's gradients in the order of its occurrences and updates the row.

    The gradients of a row's first A values and of its other B ones come in two arrays.
    """
    num_leading = np.uint64(leading_PA.shape[1])
    num_trailing = np.uint64(trailing_PB.shape[1])
    num_segments = np.uint64(plan_GSP.shape[1])
    record_floats = np.uint64(records_NR.shape[1])
    num_places = np.uint64(occurrences.shape[0])
    sums_W = np.empty(leading_PA.shape[1] + trailing_PB.shape[1], np.float32)
    leading = address_of(leading_PA, (_NONE, _NONE))
    trailing = address_of(trailing_PB, (_NONE, _NONE))
    last = np.uint64(end)
    for u in range(np.uint64(begin), last):
        ahead = u + _ROWS_AHEAD
        if ahead < last and rows_U[ahead] >= 0:
            prefetch_values(
                address_of(records_NR, (np.uint64(rows_U[ahead]), _NONE)), record_floats
            )
        if rows_U[u] < 0:
            continue
        row = np.uint64(rows_U[u])
        # Inside the loop: Numba frees an array after its last use, and an address is none.
        sums = address_of(sums_W, (_NONE,))
        earliest = np.uint64(offsets[u])
        past = np.uint64(offsets[u + _NEXT])
        for k in range(earliest + _GRADIENTS_AHEAD, min(past + _GRADIENTS_AHEAD, num_places)):
            prefetch_values(after(trailing, np.uint64(occurrences[k]) * num_trailing), num_trailing)
        places = address_of(occurrences, (earliest,))
        sum_occurrences(leading, num_leading, places, past - earliest, sums)
        sum_occurrences(trailing, num_trailing, places, past - earliest, after(sums, num_leading))
        num_occurrences = np.float64(past - earliest)
        count = max(np.float64(headers_NR[row, HEADER_COUNT]), 1.0)
        group = groups_T[np.uint64(keys_U[u]) >> _ID_BITS]
        for segment in range(num_segments):
            _step_segment(
                address_of(records_NR, (row, _NONE)),
                num_occurrences,
                count,
                sums,
                address_of(plan_GSP, (group, segment, _NONE)),
                address_of(constants_GSC, (group, segment, _NONE)),
            )
        headers_NR[row, HEADER_LAST_SEEN] = step


@kernel
def update_rows_by_sum(
    records_NR: Float32Array,
    headers_NR: Int32Array,
    keys_U: Int64Array,
    rows_U: Int32Array,
    num_occurrences_U: Int32Array,
    sums_UW: Float32Array,
    groups_T: UInt64Array,
    plan_GSP: UInt64Array,
    constants_GSC: Float32Array,
    step: int,
    begin: int,
    end: int,
) -> None:
    """Updates rows by gradients that are summed already."""
    width = np.uint64(sums_UW.shape[1])
    num_segments = np.uint64(plan_GSP.shape[1])
    record_floats = np.uint64(records_NR.shape[1])
    sums_W = np.empty(sums_UW.shape[1], np.float32)
    last = np.uint64(end)
    for u in range(np.uint64(begin), last):
        ahead = u + _ROWS_AHEAD
        if ahead < last and rows_U[ahead] >= 0:
            prefetch_values(
                address_of(records_NR, (np.uint64(rows_U[ahead]), _NONE)), record_floats
            )
        if rows_U[u] < 0:
            continue
        row = np.uint64(rows_U[u])
        # Inside the loop: Numba frees an array after its last use, and an address is none.
        sums = address_of(sums_W, (_NONE,))
        copy_values(address_of(sums_UW, (u, _NONE)), sums, width)
        num_occurrences = np.float64(num_occurrences_U[u])
        count = max(np.float64(headers_NR[row, HEADER_COUNT]), 1.0)
        group = groups_T[np.uint64(keys_U[u]) >> _ID_BITS]
        for segment in range(num_segments):
            _step_segment(
                address_of(records_NR, (row, _NONE)),
                num_occurrences,
                count,
                sums,
                address_of(plan_GSP, (group, segment, _NONE)),
                address_of(constants_GSC, (group, segment, _NONE)),
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
    _step_segment(
        address_of(record_1R, (_NONE, _NONE)),
        1.0,
        1.0,
        address_of(gradient, (_NONE,)),
        address_of(plan_SP, (_NONE, _NONE)),
        address_of(constants_SC, (_NONE, _NONE)),
    )
