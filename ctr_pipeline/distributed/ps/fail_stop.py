"""The end of a parameter server whose state cannot be trusted any more."""

import logging
import os

from ctr_pipeline.distributed.coordination.exit_codes import EXIT_HALF_UPDATED, EXIT_OUT_OF_MEMORY
from ctr_pipeline.machine import EXIT_NO_THREAD, is_refused_thread

_LOGGER = logging.getLogger(__name__)


def end_process(error: BaseException) -> None:
    """Ends the process at once, so that nothing of a half-made update is served or written.

    The master starts the server again and the job goes back to its last cut.
    """
    _LOGGER.critical("An update failed half way; the process ends", exc_info=error)
    logging.shutdown()
    if is_refused_thread(error):
        os._exit(EXIT_NO_THREAD)
    os._exit(EXIT_OUT_OF_MEMORY if isinstance(error, MemoryError) else EXIT_HALF_UPDATED)
