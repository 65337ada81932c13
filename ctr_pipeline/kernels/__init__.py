"""What compiles a kernel (Numba's decorators, SIMD, hashes, threads) and kernels of general use.

`text_ids` maps texts to ids, `time_parsing` and `time_parts` read times, `numbers` and
`float64` are what transforms of numbers compute with. Those of the embedding store stand there.
"""
