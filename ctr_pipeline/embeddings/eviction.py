"""Which rows go because they were not updated for long."""


def oldest_step_kept(steps: int, evict_after: int | None) -> int:
    """Rows last updated at an earlier step are removed; 0 removes none.

    As DeepRec's `GlobalStepEvict` has it (`docs/docs_en/Feature-Eviction.md`, `steps_to_live`): a
    row goes when more than so many steps have passed since the last update of it.

    Args:
        steps: Trained so far.
        evict_after: Steps without an update after which a row goes; None: never.
    """
    return 0 if evict_after is None else max(steps - evict_after, 0)
