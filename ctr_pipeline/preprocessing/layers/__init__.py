"""Keras 3 layers, the serving face of the transforms; they import TensorFlow."""
