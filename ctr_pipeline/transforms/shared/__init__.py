"""What several transforms share: step functions of numbers, vocabularies, tables of values."""
