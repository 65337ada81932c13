"""Text files: CSV, TSV and other delimited text, plain or compressed."""
