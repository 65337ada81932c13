"""One YAML file takes raw click logs to a trained, explained and servable CTR model."""

__version__ = "0.1.0"
