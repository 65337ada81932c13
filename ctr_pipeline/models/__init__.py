"""The architectures: what makes one logit of embedding rows, linear weights and numbers.

`registry` knows every model's YAML name and keys without importing Keras; `build` builds them.
"""
