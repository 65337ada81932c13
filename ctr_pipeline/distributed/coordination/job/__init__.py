"""The decisions of a job: a state, and parts that each take it and an event and change it."""

from ctr_pipeline.distributed.coordination.job.machine import Job

__all__ = ["Job"]
