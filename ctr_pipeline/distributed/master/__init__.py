"""The master: ledger of tasks, members, cuts, validation, status; never on the gradient path."""
