"""A stopped node's data, for the commands that check and mend it; their progress and findings."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import click
from prometheus_client import CollectorRegistry

from streamlog.cli.output import emit, field_list, note, table
from streamlog.cli.standard_streams import stderr_is_terminal
from streamlog.cli.state import State
from streamlog.cli.support.data_places import checked_places
from streamlog.engine.config import StreamEngineConfig
from streamlog.errors import DataInUse, Invalid, StreamlogError
from streamlog.kvstore.interface import KVStore
from streamlog.log.api.topic_config import TopicConfig
from streamlog.objectstore.interface import ObjectStore
from streamlog.repair.findings import Finding, Progress, RepairReport, no_progress
from streamlog.runtime.clock import Clock, SystemClock
from streamlog.runtime.offload import Offload, ThreadOffload
from streamlog.runtime.rand import Random, SystemRandom
from streamlog.settings import load
from streamlog.tiered.config import RemoteLogConfig
from streamlog.wiring import IfAbsent, check_is_there, open_metadata_store, open_object_store

PROGRESS_S = 2.0
FINDINGS_SHOWN = 100
HAS_FINDINGS = 1
COULD_NOT_RUN = 2


@dataclass(frozen=True, slots=True)
class OfflineData:
    kv: KVStore
    store: ObjectStore
    clock: Clock
    random: Random
    offload: Offload


@dataclass(frozen=True, slots=True)
class DataLocations:
    store: str
    meta: str | None
    config: StreamEngineConfig
    tiers: RemoteLogConfig = field(default_factory=RemoteLogConfig)
    topic_defaults: TopicConfig = field(default_factory=TopicConfig)


def locations_of(
    data: str | None, store: str | None, meta: str | None, file: str | None
) -> DataLocations:
    """Errors: UsageError where the options name no store; Invalid where no data is there."""
    flags = {"data": data, "store": store, "meta": meta}
    loaded = load(file, None, {name: value for name, value in flags.items() if value is not None})
    node = checked_places(loaded)
    assert node.store is not None
    if node.data is not None and not Path(node.data, "objects").is_dir():
        raise Invalid(f"{node.data} is no node's --data folder: it has no folder objects")
    return DataLocations(
        node.store, node.meta, loaded.engine, loaded.remote_log_config(), loaded.topic_config()
    )


@asynccontextmanager
async def open_offline(
    locations: DataLocations, *, if_absent: IfAbsent = "refuse"
) -> AsyncIterator[OfflineData]:
    """Holds the metadata store's lock, so that no node runs on the data meanwhile.

    `if_absent`: of the metadata store; a folder of objects has to be there.
    Errors: DataInUse, Invalid, Unavailable.
    """
    clock, random, offload = SystemClock(), SystemRandom(), ThreadOffload()
    try:
        await check_is_there(locations.store, offload)
        try:
            kv = await open_metadata_store(
                locations.meta, locations.store, clock, offload, if_absent=if_absent
            )
        except DataInUse as error:
            raise _stop_first(error) from error
        try:
            store = await open_object_store(
                locations.store, locations.config, clock, random, offload, CollectorRegistry()
            )
            try:
                yield OfflineData(kv, store, clock, random, offload)
            finally:
                await store.close()
        finally:
            await kv.close()
    finally:
        await offload.close()


def _stop_first(error: DataInUse) -> DataInUse:
    """The error of data in use, without the ways out that these commands do not have."""
    holder = error.message.rpartition("; ")[0] or error.message
    return DataInUse(
        f"{holder}; stop it first: this command works on the data of a stopped node", **error.fields
    )


def progress_of(state: State) -> Progress:
    """Lines on stderr, every other second."""
    if state.json and not stderr_is_terminal():
        return no_progress
    told_at = time.monotonic()

    def tell(work: str, done: int, total: int) -> None:
        nonlocal told_at
        if time.monotonic() - told_at >= PROGRESS_S:
            told_at = time.monotonic()
            note(f"… {work}: {done:,}" + (f" of about {total:,}" if total else ""))

    return tell


def show(
    state: State,
    look: Callable[[], RepairReport],
    summary: Callable[[RepairReport], dict[str, object]],
) -> None:
    """Prints the report. Exit codes: 0 clean, 1 findings, 2 the check could not run."""
    try:
        report = look()
    except StreamlogError as error:
        from streamlog.cli.main import report_error

        report_error(error, state)
        click.get_current_context().exit(COULD_NOT_RUN)
    except BrokenPipeError:
        # Who read the output went away, which has an exit code of its own.
        raise
    except OSError as error:
        from streamlog.cli.main import report_os_error

        report_os_error(error, state)
        click.get_current_context().exit(COULD_NOT_RUN)
    if state.json:
        emit(report.description())
    else:
        print_findings(report)
        field_list(summary(report))
    if not report.is_clean:
        click.get_current_context().exit(HAS_FINDINGS)


def print_findings(report: RepairReport) -> None:
    """Worst first; advice once for each kind."""
    findings = sorted(report.findings, key=lambda finding: -finding.severity)
    if findings:
        table(
            ("severity", "kind", "found"),
            [(f.severity.name.lower(), f.kind, f.detail) for f in findings[:FINDINGS_SHOWN]],
        )
        left = sum(report.by_kind.values()) - min(len(findings), FINDINGS_SHOWN)
        if left:
            click.echo(f"… and {left} more; --json lists up to {len(findings)}")
        for kind, advice in _advice(findings).items():
            click.echo(f"\n{kind}: {advice}")
        click.echo()
    for line in report.repaired:
        click.echo(f"repair: {line}")


def _advice(findings: list[Finding]) -> dict[str, str]:
    advice: dict[str, str] = {}
    for finding in findings:
        if finding.advice:
            advice.setdefault(str(finding.kind), finding.advice)
    return advice
