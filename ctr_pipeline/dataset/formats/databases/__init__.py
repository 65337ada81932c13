"""Tables in database files: DuckDB and SQLite, read only."""
