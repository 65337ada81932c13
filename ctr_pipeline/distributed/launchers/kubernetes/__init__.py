"""Members as pods of a Kubernetes namespace.

The driver pod, which the job's controller starts, runs `ctrpipe run`. Its launcher keeps the master
as a process beside it, and parameter servers and workers as pods. All belong to one Job: deleting
that deletes everything.
"""
