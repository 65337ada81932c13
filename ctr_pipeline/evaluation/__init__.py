"""How good predictions are: exact ranking, likelihood and calibration metrics in NumPy.

Everything is a pure function of labels and scores; nothing here reads a file or knows a model.
"""
