"""`ctrpipe tune`: the search for better settings."""
