"""Sample data from a planted model, so that the best possible figures are known."""
