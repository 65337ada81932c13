"""What compiled code is made of: Numba's decorators, loads, lanes, hashes and threads.

Kernels themselves stand beside what they serve: `text_kernels` in preprocessing, `row_kernels` in
embeddings.
"""
