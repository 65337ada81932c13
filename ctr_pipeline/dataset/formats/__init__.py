"""Source formats: one folder each."""
