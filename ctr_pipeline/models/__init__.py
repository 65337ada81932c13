"""The architectures: what makes one logit of embedding rows, linear weights and numbers.

`specs/model_kinds.py` has each model's keys of the config, without Keras; `build` builds them.
"""
