"""Options of writes, and whose name a write has."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.fs
import pytest

from streamlog.codec.batch import Compression
from streamlog.errors import InvalidConfig
from streamlog.runtime.rand import SeededRandom
from streamlog.spark.sink.write_options import WRITE_OPTIONS, parse_write_options
from streamlog.spark.sink.writer_ids import batch_writer_id, query_id, stream_writer_id

GIVEN = {"server": "127.0.0.1:9644"}


def test_defaults_and_names_in_any_case() -> None:
    options = parse_write_options({"KAFKA.bootstrap.servers": "h:1"}, streaming=False)
    assert (options.server, options.topic, options.writer_epoch) == ("h:1", None, 0)
    assert options.compression is Compression.NONE
    options = parse_write_options(
        {
            **GIVEN,
            "Topic": "logs",
            "COMPRESSION": "ZSTD",
            "batchbytes": "1000",
            "bufferbytes": "2000000",
            "writerId": "nightly",
            "writerepoch": "7",
            "timeoutMs": "5",
            "stagedTtlMs": "60000",
            "path": "",
            "__internal": "x",
        },
        streaming=False,
    )
    assert (options.topic, options.compression, options.batch_bytes) == (
        "logs",
        Compression.ZSTD,
        1000,
    )
    assert options.buffer_bytes == 2_000_000
    assert (options.writer_id, options.writer_epoch) == ("nightly", 7)
    assert (options.timeout_ms, options.staged_ttl_ms) == (5, 60_000)


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"server": None}, "server"),
        ({"server": "http://h:1/"}, "server"),
        ({"server": "h:1,i:2"}, "server"),
        ({"store": "local:///data"}, "store"),
        ({"readMode": "auto"}, "readMode"),
        ({"topic": " "}, "topic"),
        ({"compression": "brotli"}, "compression"),
        ({"batchBytes": "0"}, "batchBytes"),
        ({"batchBytes": "many"}, "batchBytes"),
        ({"bufferBytes": "1000"}, "bufferBytes"),
        ({"writerId": "x" * 201}, "writerId"),
        ({"writerEpoch": "1"}, "writerEpoch"),
        ({"stagedTtlMs": str(1 << 62)}, "stagedTtlMs"),
        ({"topik": "t"}, "topik"),
        ({"subscribe": "t"}, "subscribe"),
        ({"kafka.acks": "all"}, "kafka.acks"),
    ],
)
def test_a_wrong_write_option_is_named(
    given: dict[str, str | None], name: str, streaming: bool
) -> None:
    named = {key: value for key, value in {**GIVEN, **given}.items() if value is not None}
    with pytest.raises(InvalidConfig) as raised:
        parse_write_options(named, streaming=streaming)
    assert raised.value.name == name
    assert f"option {name} " in str(raised.value)


def test_a_near_name_is_proposed_and_a_stream_has_no_epoch_of_its_own() -> None:
    with pytest.raises(InvalidConfig, match="did you mean batchBytes"):
        parse_write_options({**GIVEN, "batchByte": "1"}, streaming=False)
    with pytest.raises(InvalidConfig, match="writerEpoch is for batch writes"):
        parse_write_options({**GIVEN, "writerId": "w", "writerEpoch": "1"}, streaming=True)


def test_every_option_is_in_the_docs() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "spark.md").read_text()
    assert [name for name in WRITE_OPTIONS if f"`{name}`" not in page] == []


def test_each_batch_write_has_a_name_of_its_own() -> None:
    options = parse_write_options(GIVEN, streaming=False)
    random = SeededRandom(1)
    assert batch_writer_id(options, random) != batch_writer_id(options, random)
    named = parse_write_options({**GIVEN, "writerId": "w"}, streaming=False)
    assert batch_writer_id(named, random) == "w"


def test_a_stream_is_known_by_the_id_in_its_checkpoint(tmp_path: Path) -> None:
    checkpoint = tmp_path / "my checkpoint"
    checkpoint.mkdir()
    (checkpoint / "metadata").write_text(json.dumps({"id": "5f0c-1"}))
    for text in (str(checkpoint), f"file:{tmp_path}/my%20checkpoint", checkpoint.as_uri()):
        options = parse_write_options({**GIVEN, "checkpointLocation": text}, streaming=True)
        assert stream_writer_id(options) == "spark-query-5f0c-1"
    named = parse_write_options(
        {**GIVEN, "checkpointLocation": "/nowhere", "writerId": "w"}, streaming=True
    )
    assert stream_writer_id(named) == "w"


def test_a_checkpoint_on_another_file_system_is_read_by_pyarrow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "metadata").write_text(json.dumps({"id": "5f0c-2"}))
    asked: list[str] = []

    class FileSystem:
        @staticmethod
        def from_uri(uri: str) -> tuple[pyarrow.fs.FileSystem, str]:
            asked.append(uri)
            return pyarrow.fs.LocalFileSystem(), str(tmp_path)

    monkeypatch.setattr(pyarrow.fs, "FileSystem", FileSystem)
    assert query_id("s3a://bucket/checks/q1/") == "5f0c-2"
    assert asked == ["s3://bucket/checks/q1/"]


@pytest.mark.parametrize("content", [None, "", "[]", '{"id": 5}', '{"id": "../x"}'])
def test_a_stream_that_nothing_names_is_refused(tmp_path: Path, content: str | None) -> None:
    with pytest.raises(InvalidConfig, match="checkpointLocation is missing"):
        stream_writer_id(parse_write_options(GIVEN, streaming=True))
    if content is not None:
        (tmp_path / "metadata").write_text(content)
    with pytest.raises(InvalidConfig, match="give the query a writerId"):
        query_id(str(tmp_path))
