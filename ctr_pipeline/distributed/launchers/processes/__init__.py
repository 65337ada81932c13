"""Members as processes of this machine.

The launcher lives in the process that the user started and is the parent of every member: it
restarts the master, and starts and stops the others when the master asks. Members die with it, by
the system's own hand, so nothing is ever orphaned.
"""
