"""What stands on top of the pipeline: applications that a run does not need.

Each has one module or package; none is imported by `ctrpipe run`.
"""
