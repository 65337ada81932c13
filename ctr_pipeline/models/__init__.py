"""The architectures: what makes one logit of embedding rows, linear weights and numbers.

`names` knows every model's YAML name and keys without importing Keras; `registry` builds them.
"""
