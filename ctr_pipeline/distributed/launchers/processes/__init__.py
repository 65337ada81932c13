"""Members as processes of this machine.

The launcher lives in the process that the user started, and is the parent of every member. The
system kills members when the launcher ends, so that none is ever orphaned.
"""
