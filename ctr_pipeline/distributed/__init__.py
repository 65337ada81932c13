"""The elastic runtime's place: master, parameter servers, workers.

`runtime: {mode: local}`, the only mode there is, needs none of it.
"""
