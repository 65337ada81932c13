"""The model that a config describes, and the model with the parameters that it was trained to."""
