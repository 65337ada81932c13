"""The servable model: a SavedModel of raw columns, written in bounded memory and proved.

`servable` writes it, `parity` proves in a process of TensorFlow alone that it scores as the trainer
does, `edge_rows` makes the hard rows for that proof.
"""
