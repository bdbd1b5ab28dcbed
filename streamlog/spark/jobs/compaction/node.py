"""Compaction on executors for a node that runs: it plans and commits, its merges are done here.

1. The driver calls the node (CompactionService) and gets one job after the other, for as long as
   something is not fully compacted. Appends and reads go on.
2. A job is cut into one task for each output, as offline; tasks read and write the store directly.
3. The node looks at what was stored and commits it. When the driver goes away in the middle, or
   the node does, nothing of the job is committed; the node deletes its outputs as orphans.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from streamlog.client.calls.merge import Accepted, MergeCall, MergeJob, MergesCommitted
from streamlog.client.channel import Caller
from streamlog.client.tls import Tls
from streamlog.compaction.plan.config import CompactionConfig
from streamlog.compaction.plan.spec import decode_job, encode_outcome
from streamlog.errors import Corrupt, Invalid, ObjectNotFound
from streamlog.reading.blocks import data_key
from streamlog.repair.findings import Progress, no_progress
from streamlog.runtime.rand import SystemRandom
from streamlog.spark.cluster.cluster import CLIENT_ID
from streamlog.spark.jobs.compaction.job import Compacted, JobSettings, run_job


def compact_node(
    spark: Any,
    server: str,
    *,
    store: str | None = None,
    config: CompactionConfig | None = None,
    owner: str = CLIENT_ID,
    progress: Progress = no_progress,
    tls: Tls | None = None,
) -> Compacted:
    """Merges the node's objects that are not fully compacted.

    `store`: where executors find the store, if not where the node does. `config`: of it, memory and
    spool folder of a task. Errors: Conflict (another executor has the node's merges), Invalid (the
    node does not compact, or refuses what was stored), Unavailable, TaskFailed; then what was
    committed stays, and the node goes on by itself.
    """
    config = config or CompactionConfig()
    done = Compacted()
    caller = Caller(server, client_id=CLIENT_ID, tls=tls)
    try:
        with MergeCall(caller, owner) as call, _interrupted_with(spark, call):
            work: JobSettings | None = None
            for event in call.events():
                if isinstance(event, Accepted):
                    url = store or event.store_url
                    work = JobSettings.of(url, config)
                elif isinstance(event, MergesCommitted):
                    done.specs, done.inputs, done.outputs = event
                    return done
                elif work is not None:
                    _answer(spark, call, work, event, done)
                    progress("bytes written", done.bytes_written, 0)
            raise Invalid(f"{server} ended the call without a word: is it a node of this release?")
    finally:
        caller.close()


def _answer(
    spark: Any, call: MergeCall, work: JobSettings, event: MergeJob, done: Compacted
) -> None:
    job = decode_job(event.job)
    try:
        outcome = run_job(spark, work, job)
    except (Corrupt, ObjectNotFound) as error:
        inputs = {data_key(source.row.object_id) for source in job.spec.inputs}
        if error.fields.get("object_key") not in inputs:
            raise
        done.failed.append(f"{type(error).__name__}: {error.message}")
        call.failed(event.number, error)
    except Exception:
        # If the node has ended the call, tasks were interrupted: then its error is the cause.
        call.raise_if_over()
        raise
    else:
        done.bytes_read += outcome.bytes_read
        done.bytes_written += outcome.bytes_written
        call.done(event.number, encode_outcome(outcome))


@contextmanager
def _interrupted_with(spark: Any, call: MergeCall) -> Iterator[None]:
    """Interrupts tasks when the call ends: their outputs would not be committed."""
    tag = f"streamlog-{SystemRandom().bytes(8).hex()}"
    spark.addTag(tag)
    call.on_end(lambda: spark.interruptTag(tag))
    try:
        yield
    finally:
        spark.removeTag(tag)
