"""A request's trace id is in every log line that the request caused, and in no other."""

from __future__ import annotations

import json
from pathlib import Path

import grpc
import pytest

from streamlog.v1 import admin_pb2, log_pb2
from streamlog.v1.admin_pb2_grpc import AdminServiceStub
from streamlog.v1.log_pb2_grpc import LogServiceStub
from tests.support.node import NodeProcess
from tests.support.server_harness import batch

TRACE = "0af7651916cd43dd8448eb211c80319c"
OWN = ("streamlog-trace-id", TRACE)
W3C = ("traceparent", f"00-{TRACE}-b7ad6b7169203331-01")


@pytest.mark.parametrize("header", [OWN, W3C], ids=["own", "traceparent"])
def test_a_trace_id_is_carried_through(tmp_path: Path, header: tuple[str, str]) -> None:
    levels = ("--log-format", "json", "--set", "log_level=debug")
    with (
        NodeProcess(tmp_path / "data", arguments=levels) as node,
        grpc.insecure_channel(node.server) as channel,
    ):
        admin = AdminServiceStub(channel)
        topic = admin_pb2.NewTopic(name="traced", partitions=1)
        admin.CreateTopics(admin_pb2.CreateTopicsRequest(topics=[topic]))
        admin.DeleteTopics(admin_pb2.DeleteTopicsRequest(names=["traced"]), metadata=[header])
        with pytest.raises(grpc.RpcError):
            admin.DescribeObject(
                admin_pb2.DescribeObjectRequest(key="no-such-object"), metadata=[header]
            )
    lines = [json.loads(line) for line in node.log_path.read_text().splitlines()]
    traced = [line["message"] for line in lines if line.get("trace_id") == TRACE]
    assert "topic deleted" in traced
    assert "request refused" in traced
    assert not [line for line in lines if line["message"] == "opened" and "trace_id" in line]


def test_a_trace_id_goes_with_an_append_to_the_wal_and_the_store(tmp_path: Path) -> None:
    levels = ("--log-format", "json", "--set", "log_level=debug")
    with NodeProcess(tmp_path / "data", arguments=levels) as node:
        with grpc.insecure_channel(node.server) as channel:
            topic = admin_pb2.NewTopic(name="traced", partitions=1)
            admin = AdminServiceStub(channel)
            admin.CreateTopics(admin_pb2.CreateTopicsRequest(topics=[topic]))
            part = log_pb2.ProducePartition(record_batches=batch(b"v"))
            produce = log_pb2.ProduceRequest(
                topics=[log_pb2.ProduceTopic(topic="traced", partitions=[part])]
            )
            client = ("streamlog-client-id", "a client")
            LogServiceStub(channel).Produce(produce, metadata=[OWN, client])
        assert node.stop() == 0  # Which uploads what the WAL holds.
    lines = [json.loads(line) for line in node.log_path.read_text().splitlines()]
    traced = {line["message"] for line in lines if TRACE in line.get("trace_ids", ())}
    assert traced == {
        "appends are durable in the WAL",
        "appends are in the store, to be committed",
    }
    assert {line["client_id"] for line in lines if line.get("trace_id") == TRACE} <= {"a client"}
