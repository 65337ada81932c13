"""MaxCompute as a source of rows; imported only where a config names a table of it.

`table` knows how tables are named and what is known of them, `dialect` and `selection` write SQL,
`client` alone talks to the service, `inspection` and `reading` do for tables what others do for
files.
"""
