"""Scores of rows with a trained model: `ctrpipe predict` and `ctrpipe evaluate`."""
