"""Keeps a picture of the pods of a launcher: list, watch, and list again.

A watch can end without a word, miss changes or be too old; a list is always whole. So every watch
is followed by a list, and the list decides.
"""

import logging
import threading
from collections.abc import Callable
from typing import Any

from ctr_pipeline.distributed.coordination.timeouts import backoff_seconds
from ctr_pipeline.distributed.launchers.kubernetes.api import ApiError, KubernetesApi

_LOGGER = logging.getLogger(__name__)
_WATCH_SECONDS = 30
_FIRST_PAUSE_SECONDS = 0.2
_MOST_PAUSE_SECONDS = 2.0


class PodWatch:
    """Calls back with every change of the pods with some labels, from a thread of its own.

    Args:
        on_list: Given all pods, and when that list was asked for, by the caller's `count`.
        on_change: Given a pod that is new, changed or, with False, gone.
        count: Drawn before each list.
        pause: Waits seconds; True once the watch is over.
    """

    def __init__(
        self,
        api: KubernetesApi,
        selector: str,
        *,
        on_list: Callable[[tuple[dict[str, Any], ...], int], None],
        on_change: Callable[[dict[str, Any], bool], None],
        count: Callable[[], int],
        pause: Callable[[float], bool] | None = None,
    ) -> None:
        self._api, self._selector = api, selector
        self._on_list, self._on_change, self._count = on_list, on_change, count
        self._over = threading.Event()
        self._pause = pause or self._over.wait
        self._thread = threading.Thread(target=self.run, name="pod-watch", daemon=True)

    def start(self) -> None:
        """Lists once, so that the picture is whole, then goes on in the thread.

        An API server that does not answer is waited for.

        Raises:
            ApiError: It refuses the list.
        """
        failures = 0
        while True:
            try:
                self._list()
                break
            except ApiError as error:
                if not error.may_pass:
                    raise
                failures += 1
                _LOGGER.warning("the pods are listed again, as that failed: %s", error)
            self._pause(_pause_seconds(failures))
        self._thread.start()

    def close(self) -> None:
        """Ends the thread with the next change; its last calls may still come."""
        self._over.set()

    def run(self) -> None:
        """Lists and watches until it is closed."""
        failures = 0
        while not self._over.is_set():
            try:
                version = self._list()
                failures = 0
                for kind, pod in self._api.watch(
                    "Pod", self._selector, version, seconds=_WATCH_SECONDS
                ):
                    if self._over.is_set():
                        return
                    if kind != "BOOKMARK":
                        self._on_change(pod, kind != "DELETED")
            except ApiError as error:
                if error.status != 410:
                    failures += 1
                    _LOGGER.warning("the pods cannot be watched: %s", error)
            except Exception:
                # Without the thread the launcher would be blind.
                failures += 1
                _LOGGER.exception("the watch of pods continues after an error")
            if self._pause(_pause_seconds(failures) if failures else 0.0):
                return

    def _list(self) -> str:
        asked = self._count()
        found = self._api.list("Pod", self._selector)
        self._on_list(found.items, asked)
        return found.version


def _pause_seconds(failures: int) -> float:
    return backoff_seconds(failures, first=_FIRST_PAUSE_SECONDS, most=_MOST_PAUSE_SECONDS)
