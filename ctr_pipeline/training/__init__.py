"""Training of any Keras model whose embeddings live outside of it.

TensorFlow computes one pure function, (parameters, rows, batch) → gradients; dense parameters,
embedding rows and their optimizers live in `embeddings`. Nothing here imports TensorFlow before a
model is compiled.
"""
