"""A Spark session for commands: finds Java first, and keeps Spark's own logs quiet."""

from __future__ import annotations

import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any

from streamlog.errors import Invalid
from streamlog.spark.errors import SparkFailed

log = logging.getLogger(__name__)

JAVA_LEAST = 17
_INSTALL = (
    f"install Java {JAVA_LEAST} or newer (Debian, Ubuntu: apt install openjdk-17-jre-headless; "
    "Fedora: dnf install java-21-openjdk-headless; macOS: brew install openjdk@21) and set "
    "JAVA_HOME where it is not on the PATH"
)
_PLACES = ("/usr/lib/jvm", "/opt/homebrew/opt", "/Library/Java/JavaVirtualMachines")


class JavaMissing(Invalid):
    """This machine has no Java that is new enough."""


def java_version(java: Path) -> int | None:
    """17 for 17.0.2, 8 for 1.8; None if it does not run."""
    try:
        ran = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', ran.stderr + ran.stdout)
    return None if match is None or ran.returncode else int(match[1])


def find_java(environment: Mapping[str, str] = os.environ) -> Path:
    """The home of a Java that Spark runs on, from JAVA_HOME, PATH or the usual folders.

    Errors: JavaMissing, with the versions that were found and how to install one.
    """
    seen: list[str] = []
    for java in _javas(environment):
        version = java_version(java)
        if version is not None and version >= JAVA_LEAST:
            return java.resolve().parent.parent
        seen.append(f"{java} is {'Java ' + str(version) if version else 'none that runs'}")
    message = "; ".join(seen) or "there is no Java on this machine"
    raise JavaMissing(f"{message}: {_INSTALL}")


def _javas(environment: Mapping[str, str]) -> Iterator[Path]:
    home = environment.get("JAVA_HOME")
    if home:
        yield Path(home, "bin", "java")
    on_path = shutil.which("java", path=environment.get("PATH", os.defpath))
    if on_path:
        yield Path(on_path)
    if environment is not os.environ:
        return
    for place in map(Path, _PLACES):
        yield from sorted(place.glob("*/bin/java"))


def _is_not_py4j(record: logging.LogRecord) -> bool:
    return f"{os.sep}py4j{os.sep}" not in record.pathname


@contextmanager
def session(name: str, master: str, conf: Mapping[str, str]) -> Iterator[Any]:
    """A session that is stopped at the end. Local workers use this Python and find this package; on
    a cluster they use PYSPARK_PYTHON, if it is set.

    Errors: JavaMissing; Invalid, if PySpark is not installed; SparkFailed for those of Spark, which
    come with tracebacks of two languages.
    """
    if find_spec("pyspark") is None or find_spec("pyarrow") is None:
        raise Invalid("PySpark is not installed: install this package with its extra spark")
    os.environ["JAVA_HOME"] = str(find_java())
    if master.startswith("local"):
        os.environ["PYSPARK_PYTHON"] = sys.executable
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    else:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    package = str(Path(__file__).resolve().parents[2])
    paths = [package, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    from py4j.protocol import Py4JError, Py4JNetworkError
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    # Py4J logs tracebacks of a Ctrl-C to the root logger.
    logging.getLogger().addFilter(_is_not_py4j)
    builder = SparkSession.builder.master(master).appName(name)
    defaults = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.log.level": "ERROR",
    }
    if master.startswith("local"):
        defaults["spark.driver.host"] = defaults["spark.driver.bindAddress"] = "127.0.0.1"
    for key, value in {**defaults, **conf}.items():
        builder = builder.config(key, value)
    try:
        with ExitStack() as stack:
            with _deferred_interrupt():
                made = builder.getOrCreate()
                stack.callback(_stop, made)
            yield made
    except PySparkException as error:
        raise SparkFailed(_first_lines(error, 1)) from error
    except (Py4JNetworkError, ConnectionRefusedError) as error:
        # Streamlog's own clients raise no ConnectionRefusedError.
        raise SparkFailed("the JVM of Spark has ended, perhaps for lack of memory") from error
    except Py4JError as error:
        # The Java exception begins in the second line.
        raise SparkFailed(_first_lines(error, 2)) from error


def _stop(made: Any) -> None:
    """A JVM that has ended has nothing to stop; the call that met it has the error."""
    from py4j.protocol import Py4JError

    try:
        made.stop()
    except (OSError, Py4JError) as error:
        log.info("Spark could not be stopped, its JVM is gone: %s", error)


@contextmanager
def _deferred_interrupt() -> Iterator[None]:
    """A first Ctrl-C inside raises KeyboardInterrupt at the end, also in place of an error; a
    second one does at once.

    PySpark waits for the file in which the JVM says its port. Interrupted there, it removes the
    folder of that file, and the JVM fails at it, prints its traceback, and never ends.
    """
    before = signal.getsignal(signal.SIGINT)
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or before in (None, signal.SIG_IGN):
        yield
        return
    has_come = False

    def come(number: int, frame: FrameType | None) -> None:
        nonlocal has_come
        if has_come:
            raise KeyboardInterrupt
        has_come = True
        log.warning("Spark will be stopped as soon as it has started; Ctrl-C again ends it at once")

    signal.signal(signal.SIGINT, come)
    try:
        yield
    except Exception as error:
        if has_come:
            raise KeyboardInterrupt from error
        raise
    finally:
        # A Spark context has set a handler of its own, which also cancels its jobs.
        if signal.getsignal(signal.SIGINT) is come:
            signal.signal(signal.SIGINT, before)
    if has_come:
        raise KeyboardInterrupt


def _first_lines(error: Exception, count: int) -> str:
    lines = [line.strip(" :") for line in str(error).splitlines()]
    return ": ".join([line for line in lines if line][:count]) or type(error).__name__
