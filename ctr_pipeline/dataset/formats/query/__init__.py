"""A SELECT as a source."""
