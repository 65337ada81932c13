"""A training that runs in several processes: started, watched and steered from this side."""
