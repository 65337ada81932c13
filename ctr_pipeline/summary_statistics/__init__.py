"""Summary statistics: single numbers that describe a column, one file each.

Adding a file and its line in `registry` computes the statistic with every engine, keeps it in
`statistics.json` under its name, and shows it in the report under its label.
"""
