"""When a member that has not been heard for a while is lost, and a worker loses its leases.

The rule for members that train and workers that encode; the callers act on it. Replicas and nodes
of elastic runs hold leases instead (`rendezvous._is_expired`). Other rules say when workers no
longer wait for a silent one (`rounds._is_silent`), and when `ctrpipe status` shows a member as
`silent`.
"""


def is_lost(heard_at: float, now: float, silence_seconds: float) -> bool:
    """Whether a member counts as lost because nothing was heard of it.

    Args:
        heard_at: Last sign of life, in seconds on the job's clock.
        now: The same clock.
        silence_seconds: `runtime.silence_seconds`.
    """
    return now - heard_at > silence_seconds
