"""Rows from data files: inspection, ingestion, splits, order, and encoded rows on disk."""
