"""Staged objects under fsck, and in a recovery from the store alone."""

from __future__ import annotations

from streamlog.log.staged_logs import ManifestEntry
from streamlog.objectstore.keys import data_key
from streamlog.repair.findings import Kind, Severity
from tests.log.test_staged_logs import TopicPartition, contents, encoded, staged_of
from tests.repair.cluster import Cluster, partition, produce, run
from tests.repair.test_recover import recovered


def test_fsck_knows_what_is_staged_and_what_was_attached() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        async with cluster.node(crash=True) as engine:
            await engine.logs.create_topic("t", 2)
            batches = {TopicPartition("t", n): encoded([b"a", b"b"]) for n in range(2)}
            await produce(await partition(engine, "t"), b"first")
            one = await staged_of(engine).stage("w", "1", batches)
            two = await staged_of(engine).stage("w", "2", batches)
            entry = ManifestEntry(one.staged.object_id, list(batches))
            await staged_of(engine).commit("w", 0, [entry])
            await produce(await partition(engine, "t"), b"last")
        report = await cluster.fsck()
        assert not report.by_severity[Severity.ERROR] + report.by_severity[Severity.WARNING], [
            str(one) for one in report.findings
        ]
        assert report.counts["staged_objects"] == 1
        await cluster.store.delete([data_key(two.staged.object_id)])
        (finding,) = [
            one for one in (await cluster.fsck()).findings if one.severity >= Severity.WARNING
        ]
        assert (finding.kind, finding.object_id) == (Kind.OBJECT_MISSING, two.staged.object_id)

    run(scenario)


def test_what_was_committed_comes_back_from_the_bucket_alone() -> None:
    """And all that was appended behind it, whatever no checkpoint has."""

    async def scenario() -> None:
        cluster = Cluster()
        async with cluster.node(crash=True) as engine:
            await engine.logs.create_topic("t", 2)
            logs = [await partition(engine, "t", n) for n in range(2)]
            batches = {TopicPartition("t", n): encoded([b"a", b"b"]) for n in range(2)}
            await produce(logs[0], b"first")
            objects = [await staged_of(engine).stage("w", str(n), batches) for n in range(2)]
            entry = ManifestEntry(objects[0].staged.object_id, list(batches))
            await staged_of(engine).commit("w", 4, [entry])
            await produce(logs[0], b"behind it")
            unknown = await staged_of(engine).stage("w", "late", batches)
            expected = [await contents(log) for log in logs]
            assert [value for _, value in expected[0]] == [b"first", b"a", b"b", b"behind it"]
        cluster.lose_metadata()
        report = await recovered(cluster)
        (finding,) = [one for one in report.findings if one.kind is Kind.STAGED]
        assert finding.object_id == unknown.staged.object_id
        async with cluster.node() as engine:
            logs = [await partition(engine, "t", n) for n in range(2)]
            assert [await contents(log) for log in logs] == expected
            again = await staged_of(engine).commit("w", 4, [])
            assert again.was_committed
            # What a checkpoint knew to be staged can be committed yet.
            entry = ManifestEntry(objects[1].staged.object_id, list(batches))
            await staged_of(engine).commit("w", 5, [entry])
            assert [value for _, value in await contents(logs[1])] == [b"a", b"b"] * 2
        assert not (await cluster.fsck()).by_severity[Severity.ERROR]

    run(scenario)
