"""From data files to rows: inspection, ingestion, splits, order, and encoded rows on disk."""
