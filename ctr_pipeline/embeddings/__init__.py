"""The embedding store: fused rows of values and optimizer slots, updated row by row.

`store` serves rows to the trainer and to a parameter server alike; `dense` updates dense
parameters with the same arithmetic.
Numba is imported by `store` and `dense`, not here.
"""
