"""The Spark session of a command, around a Spark that is none."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkException

from streamlog.cli.main import run as command
from streamlog.errors import StreamlogError
from streamlog.spark import local
from streamlog.spark.errors import SparkFailed
from streamlog.spark.local import session

JAVA_TEXT = "An error occurred while calling None.a.B.\n: java.lang.Error: no 1x\n\tat a.B"
REFUSED = ConnectionRefusedError(111, "Connection refused")
PYTHON_TEXT = "[NO_SUCH] There is no such thing.\n\nJVM stacktrace:\n\tat a.B"


class FakeSparkBuilder:
    """Starts what `start` does, and counts how often the session is stopped."""

    def __init__(self, start: Callable[[], object]) -> None:
        self._start = start
        self.stop_error: Exception | None = None
        self.stops = 0

    def master(self, _: str) -> FakeSparkBuilder:
        return self

    def appName(self, _: str) -> FakeSparkBuilder:
        return self

    def config(self, *_: str) -> FakeSparkBuilder:
        return self

    def getOrCreate(self) -> Any:
        self._start()
        return self

    def stop(self) -> None:
        self.stops += 1
        if self.stop_error is not None:
            raise self.stop_error


@pytest.fixture
def spark_that(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], Any]:
    for name in ("JAVA_HOME", "PYSPARK_PYTHON", "SPARK_LOCAL_IP", "PYTHONPATH"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
    monkeypatch.setattr(local, "find_java", lambda: Path("/java"))

    def made(start: Callable[[], object]) -> FakeSparkBuilder:
        builder = FakeSparkBuilder(start)
        monkeypatch.setattr("pyspark.sql.SparkSession", SimpleNamespace(builder=builder))
        return builder

    return made


def raising(error: Exception) -> Callable[[], object]:
    def start() -> None:
        raise error

    return start


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (Py4JError(JAVA_TEXT), "An error occurred while calling None.a.B.: java.lang.Error: no 1x"),
        (PySparkException(PYTHON_TEXT), "[NO_SUCH] There is no such thing."),
    ],
)
def test_an_error_of_spark_is_one_line(spark_that: Any, error: Exception, text: str) -> None:
    spark_that(raising(error))
    with pytest.raises(SparkFailed) as raised, session("a", "local[1]", {}):
        pass
    assert raised.value.message == text
    builder = spark_that(lambda: None)
    with pytest.raises(SparkFailed, match="no"), session("a", "local[1]", {}):
        raise error
    assert builder.stops == 1


@pytest.mark.parametrize(
    "stop_error", [REFUSED, Py4JError("it is gone")], ids=lambda error: type(error).__name__
)
def test_a_jvm_that_died_is_told_by_the_call_that_met_it(
    spark_that: Any, stop_error: Exception
) -> None:
    builder = spark_that(lambda: None)
    builder.stop_error = stop_error
    for met in (REFUSED, Py4JNetworkError("Answer from Java side is empty")):
        with pytest.raises(SparkFailed, match="has ended"), session("a", "local[1]", {}):
            raise met
    with pytest.raises(KeyboardInterrupt), session("a", "local[1]", {}):
        raise KeyboardInterrupt
    assert builder.stops == 3


@pytest.mark.parametrize(
    "error",
    [PySparkException(PYTHON_TEXT), OSError(28, "No space left on device", "scrub.json")],
)
def test_a_scrub_that_could_not_run_has_found_nothing(
    spark_that: Any, tmp_path: Path, error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "objects").mkdir()
    spark_that(raising(error))
    assert command(["spark", "scrub", "--data", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("streamlog: ")


def test_a_state_file_that_cannot_be_written_is_told_before_spark_starts(
    spark_that: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "objects").mkdir()
    spark_that(raising(StreamlogError("Spark was started")))
    state = tmp_path / "missing" / "scrub.json"
    assert command(["spark", "scrub", "--data", str(tmp_path), "--state", str(state)]) == 2
    assert f"{state.parent} is no folder that can be written to" in capsys.readouterr().err


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_an_interruption_while_spark_starts_waits_until_it_can_be_stopped(spark_that: Any) -> None:
    reached: list[str] = []

    def start() -> None:
        interrupt()
        reached.append("started")

    builder = spark_that(start)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), session("a", "local[1]", {}):
        reached.append("used")
    assert (reached, builder.stops) == (["started"], 1)
    assert signal.getsignal(signal.SIGINT) is before


def test_an_interruption_of_a_start_that_fails_is_one(
    spark_that: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def start() -> None:
        interrupt()
        raise Py4JError(JAVA_TEXT)

    builder = spark_that(start)
    with pytest.raises(KeyboardInterrupt), session("a", "local[1]", {}):
        pass
    assert builder.stops == 0
    assert "Ctrl-C again ends it at once" in caplog.text


def test_a_second_interruption_does_not_wait(spark_that: Any) -> None:
    reached: list[str] = []

    def start() -> None:
        interrupt()
        reached.append("interrupted")
        interrupt()
        reached.append("started")

    builder = spark_that(start)
    with pytest.raises(KeyboardInterrupt), session("a", "local[1]", {}):
        reached.append("used")
    assert (reached, builder.stops) == (["interrupted"], 0)
