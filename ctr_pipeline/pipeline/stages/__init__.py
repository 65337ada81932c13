"""The stages of a run, one file each, with the helpers that serve one stage beside it."""
