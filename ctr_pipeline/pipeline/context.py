"""What all stages of one command share."""

from dataclasses import dataclass, field
from typing import Self

from ctr_pipeline.config.loader import LoadedConfig
from ctr_pipeline.config.models import Config
from ctr_pipeline.pipeline.logged_progress import LoggedProgress
from ctr_pipeline.pipeline.run_folder import RunFolder
from ctr_pipeline.pipeline.sessions import ChangedKey
from ctr_pipeline.pipeline.timing import StageTimes
from ctr_pipeline.progress import Progress


@dataclass(frozen=True)
class RunContext:
    """Made once by a command and passed to every stage, beside the artefacts that the stage takes.

    Attributes:
        loaded: The config.
        run: The run folder.
        progress: Shows what goes on.
        times: Clock of the stages.
        resume: Go on from what an earlier, interrupted run of this folder reached.
        profile: Measure where the time of training goes, log it, and keep it for the report.
        changes: What a resumed training does otherwise than before, once that is known.
    """

    loaded: LoadedConfig
    run: RunFolder
    progress: Progress
    times: StageTimes = field(default_factory=StageTimes)
    resume: bool = False
    profile: bool = False
    changes: list[ChangedKey] = field(default_factory=list)

    @classmethod
    def create(
        cls,
        loaded: LoadedConfig,
        progress: Progress,
        seconds_before: float = 0.0,
        *,
        resume: bool = False,
        profile: bool = False,
    ) -> Self:
        """The context of one command; what `progress` shows goes into the log of the run as well.

        Args:
            loaded: The config.
            progress: Shows what goes on.
            seconds_before: Spent since the command was given.
            resume: As the attribute.
            profile: As the attribute.
        """
        run, times = RunFolder.of(loaded.config), StageTimes(seconds_before)
        logged = LoggedProgress(progress)
        if run.stored is not None:
            run.stored.log = logged.log
        return cls(loaded, run, logged, times, resume, profile)

    @property
    def config(self) -> Config:
        """The values of the config."""
        return self.loaded.config
