"""The architectures: what makes one logit of embedding rows, linear weights and numbers.

`specs/model_kinds.py` has each model's YAML name and keys without importing Keras; `build` builds
them.
"""
