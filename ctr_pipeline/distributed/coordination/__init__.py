"""Decisions of the runtime as pure functions, and the vocabulary that members share."""
