"""A prefix of a bucket in S3, Google Cloud Storage or Azure, or a web server, through obstore.

Credentials and endpoints come from the environment alone: the variables of each cloud
(`AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT_URL`, `GOOGLE_APPLICATION_CREDENTIALS`,
`AZURE_STORAGE_ACCOUNT_NAME`, …) or the identity of the machine. `AWS_ALLOW_HTTP=true` allows an
endpoint without TLS.
"""

import contextlib
import io
import logging
import os
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from queue import Full, Queue
from typing import IO, Any, TypeVar

import obstore
from obstore import exceptions
from obstore.store import HTTPStore, from_url

from ctr_pipeline.errors import StorageError
from ctr_pipeline.storage import store_answers
from ctr_pipeline.storage.cloud_environment import check_environment, is_web
from ctr_pipeline.storage.protocol import (
    ObjectExistsError,
    ObjectMissingError,
    ObjectTruncatedError,
    StoredObject,
    changed,
    check_key,
)
from ctr_pipeline.storage.ranged_reading import open_ranges
from ctr_pipeline.storage.store_answers import Answer

_LOGGER = logging.getLogger(__name__)

_CONNECT_SECONDS = 5.0
_SILENCE_SECONDS = 60.0
"""Without a byte of an answer, after which a request is repeated."""

_REQUEST_SECONDS = 600.0
_PART_BYTES = 8 << 20
_BLOCK_BYTES = 1 << 20
_BLOCKS_AHEAD = 4
_LOOK_SECONDS = 0.2
_WORD_SECONDS = 10.0
"""Without an answer, after which that is told."""

_Result = TypeVar("_Result")


class _GivenUpError(Exception):
    """The bytes of an upload end before their end."""


class _Upload(io.RawIOBase):
    """A file whose blocks a thread puts while more of them are written.

    The library's own writer cannot give an upload up: it completes what there is of it.
    """

    def __init__(self, put: Callable[[Iterator[bytes]], None]) -> None:
        self._blocks: Queue[bytes | _GivenUpError | None] = Queue(_BLOCKS_AHEAD)
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="upload")
        self._outcome = self._pool.submit(put, self._taken())

    def writable(self) -> bool:
        return True

    def write(self, block: Any, /) -> int:
        data = bytes(block)
        self._add(data)
        return len(data)

    def _add(self, item: bytes | _GivenUpError | None) -> None:
        while not self._outcome.done():
            with contextlib.suppress(Full):
                self._blocks.put(item, timeout=_LOOK_SECONDS)
                return
        self._outcome.result()

    def _taken(self) -> Iterator[bytes]:
        while not isinstance(item := self._blocks.get(), _GivenUpError):
            if item is None:
                return
            yield item
        raise item

    def finish(self) -> None:
        """Returns when the object is there."""
        self._add(None)
        self._outcome.result()
        self._pool.shutdown()

    def give_up(self) -> None:
        """Returns when the store knows that nothing more comes."""
        with contextlib.suppress(Exception):
            self._add(_GivenUpError())
            self._outcome.result()
        self._pool.shutdown()


@dataclass(frozen=True)
class Patience:
    """How long a store that does not answer is tried again.

    Attributes:
        first_pause_seconds: Doubled after each attempt, and shortened by chance by up to a half.
        give_up_seconds: Since the first attempt.
    """

    first_pause_seconds: float = 0.1
    longest_pause_seconds: float = 5.0
    give_up_seconds: float = 120.0
    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


class _NoAnswerError(Exception):
    """An attempt failed in a way that says nothing of the next one."""


class ObjectStore:
    """Objects below a prefix of a bucket.

    Args:
        address: `s3://bucket/prefix`, `gs://…`, `az://…`, or of a web server, which is only read.
        any_key: Others gave the objects their keys, with any characters.
        patience: A test's clock.

    Raises:
        StorageError: The address or the environment is not usable.
    """

    def __init__(
        self, address: str, *, any_key: bool = False, patience: Patience | None = None
    ) -> None:
        self.address = address.rstrip("/")
        self._check: Callable[[str], str] = str if any_key else check_key
        self._patience = patience or Patience()
        self._has_answered = False
        check_environment(self.address)
        # Requests are repeated here, where a lost answer to a conditional write can be told from
        # another writer's; only parts of a stream, which cannot be had twice, are in the library.
        self._store = self._open({"max_retries": 0})

    @cached_property
    def _streams(self) -> Any:
        return self._open(_retries(self._patience))

    def _open(self, retries: Any) -> Any:
        open_url = HTTPStore.from_url if is_web(self.address) else from_url
        try:
            return open_url(
                self.address, retry_config=retries, client_options=_client_options(self.address)
            )
        except (exceptions.BaseError, ValueError) as error:
            raise StorageError(
                f"cannot be opened ({Answer.of(error).said})",
                place=self.address,
                remedy="Write it as s3://bucket/prefix, and set the variables of its cloud",
            ) from error

    def read(self, key: str) -> bytes:
        """See `Storage.read`."""
        self._check(key)
        return self._repeat(key, lambda: bytes(obstore.get(self._store, key).bytes()))

    def read_range(
        self, key: str, start: int, num_bytes: int, *, version: str | None = None
    ) -> bytes:
        """See `Storage.read_range`."""
        self._check(key)
        if not num_bytes:
            return b""

        def attempt() -> bytes:
            found = obstore.get(self._store, key, options={"range": (start, start + num_bytes)})
            if version is not None and _described(found.meta).version != version:
                raise changed(self._place(key))
            return bytes(found.bytes())

        try:
            data = self._repeat(key, attempt)
        except ObjectTruncatedError as error:
            if version is None:
                raise
            # It has become shorter.
            raise changed(self._place(key)) from error
        if len(data) < num_bytes:
            raise store_answers.truncated(self._place(key), num_bytes - len(data))
        return data

    def write(self, key: str, data: bytes) -> None:
        """See `Storage.write`."""
        self._check(key)
        self._repeat(key, lambda: self._put(key, data))

    def _put(self, key: str, data: bytes) -> None:
        try:
            obstore.put(self._store, key, data, chunk_size=_PART_BYTES)
        except exceptions.AlreadyExistsError as error:
            # 409: a conditional write of the same key is under way.
            raise _NoAnswerError from error

    def open(self, key: str) -> IO[bytes]:
        """See `Storage.open`."""
        return open_ranges(self, key)

    @contextmanager
    def create(self, key: str) -> Iterator[IO[bytes]]:
        """See `Storage.create`."""
        self._check(key)

        def put(blocks: Iterator[bytes]) -> None:
            try:
                obstore.put(self._streams, key, blocks, chunk_size=_PART_BYTES)
            except Exception as error:
                answer = Answer.of(error)
                explained = store_answers.explain(answer, address=self.address, key=key)
                raise (explained or self._silence(answer, key)) from error

        upload = _Upload(put)
        try:
            with io.BufferedWriter(upload, _BLOCK_BYTES) as file:
                yield file
        except BaseException:
            upload.give_up()
            raise
        upload.finish()

    def put_if_absent(self, key: str, data: bytes) -> None:
        """See `Storage.put_if_absent`."""
        self._check(key)
        is_uncertain = False

        def attempt() -> None:
            nonlocal is_uncertain
            try:
                obstore.put(self._store, key, data, mode="create", use_multipart=False)
            except exceptions.AlreadyExistsError as error:
                try:
                    found = self.read(key)
                except ObjectMissingError:
                    # 409: of several writers at once, none has succeeded yet.
                    raise _NoAnswerError from error
                if not (is_uncertain and found == data):
                    raise ObjectExistsError("is there already", place=self._place(key)) from error
            except exceptions.GenericError:
                is_uncertain = True
                raise

        self._repeat(key, attempt)

    def list(self, folder: str) -> Sequence[StoredObject]:
        """See `Storage.list`."""
        prefix = self._check(folder) if folder else None
        found = self._repeat(
            folder, lambda: [one for page in obstore.list(self._store, prefix) for one in page]
        )
        return sorted((_described(one) for one in found), key=lambda one: one.key)

    def delete(self, keys: Iterable[str]) -> None:
        """See `Storage.delete`."""
        checked = [self._check(key) for key in keys]

        def attempt() -> None:
            try:
                obstore.delete(self._store, checked)
            except FileNotFoundError as error:
                if Answer.of(error).names_no_bucket:
                    raise
                # Stores that delete one at a time stop at the first that is not there.
                for key in checked:
                    self._delete_one(key)

        if checked:
            self._repeat(checked[0], attempt)

    def delete_unfinished(self, is_abandoned: Callable[[str], bool]) -> None:
        """See `Storage.delete_unfinished`: a rule of the bucket does it, `AbortIncomplete…`."""

    def _delete_one(self, key: str) -> None:
        try:
            obstore.delete(self._store, key)
        except FileNotFoundError as error:
            if Answer.of(error).names_no_bucket:
                raise

    def stat(self, key: str) -> StoredObject:
        """See `Storage.stat`."""
        self._check(key)
        try:
            return _described(self._repeat(key, lambda: obstore.head(self._store, key)))
        except ObjectMissingError:
            if not is_web(self.address):
                # An answer without a body does not say whether the bucket is there.
                self.list(key)
            raise

    def _repeat(self, key: str, attempt: Callable[[], _Result]) -> _Result:
        """Repeats an attempt until the store answers.

        Raises:
            CtrPipelineError: What the store answers; `StorageAwayError` where it does not.
        """
        patience = self._patience
        pause = patience.first_pause_seconds
        began = patience.now()
        is_told = False
        while True:
            try:
                result = attempt()
            except (exceptions.BaseError, FileNotFoundError, _NoAnswerError) as error:
                passed = patience.now() - began
                is_last = passed + pause > patience.give_up_seconds
                answer = Answer.of(error)
                explained = store_answers.explain(answer, address=self.address, key=key)
                if explained is not None:
                    raise explained from error
                if is_last or (answer.is_about_credentials and not self._has_answered):
                    raise self._silence(answer, key) from error
                if passed > _WORD_SECONDS and not is_told:
                    is_told = True
                    _LOGGER.warning(
                        "%s: the store does not answer (%s); trying for %.0f s more",
                        self._place(key), answer.said, patience.give_up_seconds - passed,
                    )  # fmt: skip
            else:
                self._has_answered = True
                return result
            patience.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311  no secret
            pause = min(2 * pause, patience.longest_pause_seconds)

    def _silence(self, answer: Answer, key: str) -> StorageError:
        if answer.is_about_credentials:
            return store_answers.no_credentials(self.address, answer)
        return store_answers.away(answer, place=self._place(key))

    def _place(self, key: str) -> str:
        return f"{self.address}/{key}"


def _retries(patience: Patience) -> Any:
    return {
        "max_retries": 10_000,  # the time decides
        "retry_timeout": timedelta(seconds=patience.give_up_seconds),
        "backoff": {
            "init_backoff": timedelta(seconds=patience.first_pause_seconds),
            "max_backoff": timedelta(seconds=patience.longest_pause_seconds),
            "base": 2,
        },
    }


def _client_options(address: str) -> Any:
    plain = os.environ.get("AWS_ALLOW_HTTP", "").lower() in {"1", "true"}
    return {
        "allow_http": plain or address.startswith("http://"),
        "connect_timeout": timedelta(seconds=_CONNECT_SECONDS),
        "read_timeout": timedelta(seconds=_SILENCE_SECONDS),
        "timeout": timedelta(seconds=_REQUEST_SECONDS),
    }


def filesystem_of(address: str) -> Any:
    """All stores of an address's scheme, as a file system of fsspec.

    Raises:
        StorageError: The environment is not usable.
    """
    from obstore.fsspec import FsspecStore

    check_environment(address)
    # Of the class itself, the scheme would stay at the names that are given to it.
    files: Any = type("Files", (FsspecStore,), {"protocol": address.partition("://")[0]})
    return files(
        client_options=_client_options(address),
        retry_config=_retries(Patience()),
    )


def _described(found: Any) -> StoredObject:
    version = found["version"] or found["e_tag"] or found["last_modified"].isoformat()
    return StoredObject(found["path"], found["size"], version)
