"""The tests: helpers are imported by where they lie."""
