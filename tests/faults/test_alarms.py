"""A node process whose S3 server is killed says so in every place, and that it is back."""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from streamlog.cli.main import cli
from streamlog.client import Producer
from streamlog.demo.s3_server import S3Server
from tests.support.node import NodeProcess
from tests.support.s3 import BUCKET

SOON = tuple(
    word
    for setting in (
        "progress.unanswered_after_ms=2000",
        "progress.probe_interval_ms=300",
        "store.request_deadline_ms=1000",
        "store.retry_backoff_ms_max=100",
    )
    for word in ("--set", f"engine.{setting}")
)


def _get(node: NodeProcess, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{node.banner['http']}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def _until(condition: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < give_up_at
        time.sleep(0.05)


def _status(node: NodeProcess) -> str:
    result = CliRunner().invoke(cli, ["status", "--server", node.server])
    assert result.exit_code == 0, result.output
    return result.output


def test_an_s3_server_that_is_killed_is_told_and_so_is_its_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "s3").mkdir()
    with S3Server(tmp_path / "s3") as server:
        server.make_bucket(BUCKET)
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        places = ("--store", server.url(BUCKET), "--meta", f"rocksdb://{tmp_path}/meta")
        node = NodeProcess(tmp_path / "node", wal="object", places=places, arguments=SOON)
        with node:
            assert _get(node, "/readyz") == (200, "ready\n")
            server.kill()
            _until(lambda: _get(node, "/readyz")[0] == 503)
            reason = _get(node, "/readyz")[1]
            assert "store_unavailable: the object store s3://" in reason
            assert "(since 2" in reason
            assert _get(node, "/livez")[0] == 200
            assert "store_unavailable" in _status(node)
            assert 'streamlog_alarm{alarm="store_unavailable"} 1.0' in _get(node, "/metrics")[1]
            server.start()
            _until(lambda: _get(node, "/readyz")[0] == 200)
            assert "store_unavailable" not in _status(node)
            with Producer(node.server) as producer:
                producer.send("t", b"after").result(60)
    told = node.log_path.read_text()
    assert "alarm store_unavailable: " in told
    assert "alarm store_unavailable has passed" in told
