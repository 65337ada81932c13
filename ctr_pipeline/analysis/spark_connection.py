"""The only module that talks to Spark, by PySpark's classic client in a Java process of its own.

Queries of results are SQL alone, so executors need no Python.
"""

import importlib
import logging
import os
import queue
import re
import shutil
import socket
import subprocess
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Self, TypeVar
from urllib.parse import urlsplit

import pyarrow as pa
from sqlglot import exp

from ctr_pipeline.analysis.spark_rows import LINE, FileView
from ctr_pipeline.config.models import AnalysisConfig
from ctr_pipeline.durable import os_errors_explained
from ctr_pipeline.errors import CtrPipelineError, DataError, StatisticsError

_Result = TypeVar("_Result")

FIXED_SETTINGS: Mapping[str, str] = {
    # A text that is no number is NULL, and `$` and capitals in names are what they are.
    "spark.sql.ansi.enabled": "false",
    "spark.sql.variable.substitute": "false",
    "spark.sql.caseSensitive": "true",
    "spark.sql.parser.escapedStringLiterals": "false",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
}
"""What results depend on; `SPARK_FIXED` of the config names the same."""

_DEFAULTS = {
    "spark.app.name": "ctrpipe",
    "spark.driver.memory": "1g",
    "spark.ui.enabled": "false",
    "spark.log.level": "ERROR",
}
_LOCAL_DEFAULTS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # Every query would start 200 tasks where a few threads do them all.
    "spark.sql.shuffle.partitions": "4",
}
_MIN_JAVA = 17
_JAVA_SECONDS = 30
_PROBE_SECONDS = 10.0
_POLL_SECONDS = 0.5
_STOP_SECONDS = 20.0
_BATCH_ROWS = 65_536
_MESSAGE_CHARACTERS = 300
_LOG_BYTES = 64 << 10
_PLACE = "analysis.master"
_GLOB = re.compile(r"([{}\[\]*?\\])")


def render(tree: exp.Expr) -> str:
    """The text of a query; names are always quoted."""
    return tree.sql(dialect="spark", identify=True)


def require_spark(config: AnalysisConfig) -> None:
    """Raises StatisticsError where Spark cannot be asked; starts nothing.

    Args:
        config: Which Spark.
    """
    _require_master(config)
    try:
        import pyspark  # noqa: F401  whether it is there
    except ImportError as error:
        raise StatisticsError(
            "PySpark, the client of Spark, is not installed",
            place="analysis.engine",
            remedy="Run: pip install 'ctrpipe[spark]'",
        ) from error
    _require_java()


def _require_master(config: AnalysisConfig) -> None:
    if config.master == "yarn":
        if not os.environ.get("HADOOP_CONF_DIR") and not os.environ.get("YARN_CONF_DIR"):
            raise StatisticsError(
                "yarn is found by the files of HADOOP_CONF_DIR, which is not set",
                place=_PLACE,
                remedy="Set HADOOP_CONF_DIR to the folder of core-site.xml and yarn-site.xml",
            )
        return
    addresses = _addresses(config.master)
    failures = []
    for host, port in addresses:
        try:
            with socket.create_connection((host, port), timeout=_PROBE_SECONDS):
                return
        except OSError as error:
            failures.append(f"{host}:{port} ({error.strerror or error})")
    if failures:
        raise StatisticsError(
            f"no Spark master answers at {', '.join(failures)}",
            place=_PLACE,
            remedy="Check the address and the network, or write local[2] to compute here",
        )


def _addresses(master: str) -> list[tuple[str, int]]:
    """Host and port of each master of a cluster; none of `local`."""
    kind, _, rest = master.partition("://")
    if kind == "k8s":
        url = urlsplit(rest if "://" in rest else f"https://{rest}")
        return [(url.hostname or rest, url.port or (80 if url.scheme == "http" else 443))]
    if kind != "spark":
        return []
    parts = [urlsplit(f"//{address}") for address in rest.split(",")]
    return [(part.hostname or rest, part.port or 7077) for part in parts]


def _require_java() -> None:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    remedy = f"Install Java {_MIN_JAVA} or later, or set JAVA_HOME to where it is"
    if java is None:
        raise StatisticsError(
            "Spark needs Java, and there is no 'java'", place="analysis.engine", remedy=remedy
        )
    try:
        said = subprocess.run(  # noqa: S603  the program that Spark itself would start
            [java, "-version"], capture_output=True, text=True, timeout=_JAVA_SECONDS, check=False
        ).stderr
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StatisticsError(
            f"Spark needs Java, and '{java}' does not run", place="analysis.engine", remedy=remedy
        ) from error
    match = re.search(r'version "(?:1\.)?(\d+)', said)
    if match is None or int(match[1]) < _MIN_JAVA:
        found = said.splitlines()[0] if said else "says no version"
        raise StatisticsError(
            f"Spark needs Java {_MIN_JAVA} or later, and '{java}' is another: {found}",
            place="analysis.engine",
            remedy=remedy,
        )


def settings_of(config: AnalysisConfig, folder: Path) -> dict[str, str]:
    """All settings that Spark is started with.

    Args:
        config: The user's settings.
        folder: For intermediate results on this machine.
    """
    is_local = config.master.startswith("local")
    own = {
        key: str(value).lower() if isinstance(value, bool) else str(value)
        for key, value in config.conf.items()
    }
    places = {"spark.sql.warehouse.dir": f"file://{folder.absolute()}/warehouse"}
    if is_local:
        places["spark.local.dir"] = str(folder.absolute())
    return {
        **_DEFAULTS,
        **(_LOCAL_DEFAULTS if is_local else {}),
        **places,
        **own,
        **FIXED_SETTINGS,
        "spark.master": config.master,
    }


class SparkConnection:
    """A Spark application of its own; a context manager. Safe for several threads.

    Args:
        config: Which Spark.
        folder: For intermediate results on this machine and Spark's log; made if need be.

    Raises:
        StatisticsError: Spark does not start, or a cluster gives no executor in time.
    """

    def __init__(self, config: AnalysisConfig, folder: Path) -> None:
        require_spark(config)
        self._config = config
        self._folder = folder
        self._log = folder / "spark.log"
        self._context: Any = None
        self._session: Any = None
        self._process: Any = None
        self._persisted: dict[str, Any] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        with os_errors_explained(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
            log = self._log.open("wb")
        try:
            with log:
                self._start(log)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def _start(self, log: IO[bytes]) -> None:
        """Starts in a thread: PySpark would else take over Ctrl-C, and may wait for ever."""
        done: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()

        def start() -> None:
            try:
                self._launch(log)
            except Exception as error:  # noqa: BLE001  it is raised where it is waited for
                done.put(error)
            else:
                done.put(None)

        seconds = self._config.start_seconds
        end = time.monotonic() + seconds
        threading.Thread(target=start, name="spark-start", daemon=True).start()
        try:
            failure = done.get(timeout=seconds)
        except queue.Empty:
            raise StatisticsError(
                f"Spark did not start in {seconds:g} s{self._last_words()}",
                place=_PLACE,
                remedy="Check the cluster, or raise analysis.start_seconds",
            ) from None
        if isinstance(failure, CtrPipelineError):
            raise failure
        if failure is not None:
            raise StatisticsError(
                f"Spark does not start ({_first_line(failure)}){self._last_words()}",
                place=_PLACE,
                remedy="Check analysis.master and analysis.conf",
            ) from failure
        self._await_executor(end)

    def _launch(self, log: IO[bytes]) -> None:
        from pyspark import SparkConf, SparkContext
        from pyspark.java_gateway import launch_gateway
        from pyspark.sql import SparkSession

        _quieten()
        if SparkContext._active_spark_context is not None:
            raise StatisticsError(
                "another Spark session is open in this process",
                place="analysis.engine",
                remedy="Stop it before: session.stop()",
            )
        conf = SparkConf(loadDefaults=False)
        for key, value in settings_of(self._config, self._folder).items():
            conf.set(key, value)
        gateway = launch_gateway(conf, {"stdout": log, "stderr": log})
        self._process = gateway.proc
        self._context = SparkContext(conf=conf, gateway=gateway)
        self._session = SparkSession(self._context)

    def _await_executor(self, end: float) -> None:
        """Without one, queries of a cluster would wait for ever."""
        if self._config.master.startswith("local"):
            return
        tracker = self._context._jsc.sc().statusTracker()
        # The driver is one of them.
        while len(tracker.getExecutorInfos()) < 2:
            if time.monotonic() > end:
                raise StatisticsError(
                    f"the cluster gave no executor in {self._config.start_seconds:g} s",
                    place=_PLACE,
                    remedy="Check that it has workers with free cores and the memory that "
                    "spark.executor.memory asks for, or raise analysis.start_seconds",
                )
            time.sleep(_POLL_SECONDS)

    def _stop(self) -> None:
        """Ends the Java process, too: it would hold its memory while a model trains."""
        logger = logging.getLogger(__name__)
        if self._session is not None:
            try:
                self._session.stop()
            except Exception as error:  # noqa: BLE001  what it would free goes with its process
                logger.info("the Spark session did not stop: %s", error)
        if self._process is None:
            return
        from pyspark import SparkContext

        gateway = SparkContext._gateway
        if gateway is not None and gateway.proc is self._process:
            with suppress(Exception):
                gateway.shutdown()
            SparkContext._gateway = None
            SparkContext._jvm = None
            SparkContext._active_spark_context = None
        process, self._process = self._process, None
        # It ends when its input does.
        with suppress(OSError):
            process.stdin.close()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def offer_files(self, view: FileView) -> None:
        """Makes a view of files.

        Raises:
            DataError: They cannot be read.
        """
        paths = ["file://" + _GLOB.sub(r"\\\1", str(file.absolute())) for file in view.files]

        def offer() -> None:
            from pyspark.sql import functions

            reader = self._session.read
            if view.is_text:
                rows = reader.text(paths).withColumnRenamed("value", LINE)
            else:
                rows = reader.parquet(*paths)
            if view.row_number is not None:
                number = functions.col("_metadata.row_index").alias(view.row_number)
                rows = rows.select("*", number)
            rows.createOrReplaceTempView(view.name)

        self._explained(offer)

    def offer(self, name: str, tree: exp.Expr, *, keep: bool = False) -> None:
        """Makes a view of a query.

        Args:
            tree: The query.
            keep: Whether its result is kept, in memory or on disk, when it is read first.

        Raises:
            DataError: Files cannot be read.
            StatisticsError: Spark refuses it.
        """

        def offer() -> None:
            from pyspark import StorageLevel

            rows = self._session.sql(render(tree))
            if keep:
                rows = rows.persist(StorageLevel.MEMORY_AND_DISK)
                with self._lock:
                    self._persisted[name] = rows
            rows.createOrReplaceTempView(name)

        self._explained(offer)

    def drop(self, name: str) -> None:
        """Forgets a view and what is kept of it."""

        def drop() -> None:
            self._session.catalog.dropTempView(name)
            with self._lock:
                rows = self._persisted.pop(name, None)
            if rows is not None:
                rows.unpersist()

        self._explained(drop)

    def rows(self, tree: exp.Expr) -> list[tuple[Any, ...]]:
        """All rows of a small result.

        Raises:
            DataError: Files cannot be read.
            StatisticsError: Spark refuses the query or fails in it.
        """
        return self._explained(
            lambda: [tuple(row) for row in self._session.sql(render(tree)).collect()]
        )

    def batches(self, tree: exp.Expr) -> Iterator[pa.RecordBatch]:
        """The rows of a large result, a bounded number at a time.

        Raises:
            DataError: Files cannot be read.
            StatisticsError: Spark refuses the query or fails in it.
        """
        frame = self._explained(lambda: self._session.sql(render(tree)))
        rows = self._explained(frame.toLocalIterator)
        while chunk := self._explained(lambda: _take(rows, _BATCH_ROWS)):
            columns = [pa.array(values) for values in zip(*chunk, strict=True)]
            yield pa.RecordBatch.from_arrays(columns, names=list(frame.columns))

    def cancel(self) -> None:
        """Ends all queries that run."""
        if self._context is not None:
            with suppress(Exception):
                self._context.cancelAllJobs()

    def _explained(self, work: Callable[[], _Result]) -> _Result:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        try:
            return work()
        except (PySparkException, Py4JError, OSError) as error:
            raise self._explain(error) from error

    def _explain(self, error: Exception) -> DataError | StatisticsError:
        whole, said = str(error), _first_line(error)
        if self._process is not None and self._process.poll() is not None:
            return StatisticsError(
                f"Spark's process ended{self._last_words()}",
                place="analysis.engine",
                remedy="Raise spark.driver.memory in analysis.conf, and run again",
            )
        if "OutOfMemoryError" in whole or "OUT_OF_MEMORY" in whole:
            return StatisticsError(
                f"Spark is out of memory ({said})",
                place="analysis.conf",
                remedy="Raise spark.driver.memory, or spark.executor.memory of a cluster",
            )
        is_absent = re.search(r"FileNotFound|PATH_NOT_FOUND|FILE_NOT_EXIST|No such file", whole)
        is_local = self._config.master.startswith("local")
        if is_absent and not is_local:
            return DataError(
                f"Spark cannot read a data file ({said})",
                place="data",
                remedy="Every machine of the cluster must see data files at the same path; mount "
                "their folder there",
            )
        if is_absent or re.search(r"FAILED_READ_FILE|CANNOT_READ_FILE|Parquet", whole):
            return DataError(
                f"Spark cannot read a data file ({said})",
                place="data",
                remedy="Let nothing change data files meanwhile, and run again",
            )
        return StatisticsError(
            f"Spark cannot run a query ({said})",
            place="analysis.engine",
            remedy="Leave analysis out: the statistics are then computed here",
        )

    def _last_words(self) -> str:
        """The last line of Spark's log that tells of a failure, or the last one."""
        try:
            with self._log.open("rb") as log:
                log.seek(max(self._log.stat().st_size - _LOG_BYTES, 0))
                lines = log.read().decode("utf-8", "replace").splitlines()
        except OSError:
            return ""
        lines = [line.strip() for line in lines if line.strip() and not line[0].isspace()]
        telling = [line for line in lines if "Exception" in line or "ERROR" in line]
        last = (telling or lines)[-1:]
        return f"; its log says: {last[0][:_MESSAGE_CHARACTERS]}" if last else ""


def _quieten() -> None:
    """Keeps PySpark from writing on its own to where users read."""
    from pyspark.logger import PySparkLogger

    # What is wrong with a query is raised, and told once.
    PySparkLogger.getLogger("SQLQueryContextLogger").disabled = True
    with warnings.catch_warnings(), suppress(ImportError):
        # It imports this when it first needs it, and warns of the pandas here, which is not used.
        warnings.simplefilter("ignore")
        importlib.import_module("pyspark.testing.utils")


def _take(rows: Iterator[Any], count: int) -> list[Any]:
    return [row for _, row in zip(range(count), rows, strict=False)]


def _first_line(error: Exception) -> str:
    """What Java's first exception says, without the names of classes before it."""
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    text = next((line for line in lines if line.startswith(": ")), lines[0] if lines else "")
    text = re.sub(r"^(?::\s*)?(?:[\w$]+(?:\.[\w$]+)+:\s*)*", "", text)
    text = re.sub(r"^\[[A-Z0-9_.]+\]\s*|\s*SQLSTATE:.*$", "", text)
    return (text or type(error).__name__)[:_MESSAGE_CHARACTERS]
