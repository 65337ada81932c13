"""Statistics of the training rows, by the engine that `analysis.engine` names."""
