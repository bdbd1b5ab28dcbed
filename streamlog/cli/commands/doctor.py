"""`streamlog doctor`: is this a place for data?"""

from __future__ import annotations

from typing import Any

import click

from streamlog.cli.output import emit, note, table
from streamlog.cli.state import State
from streamlog.cli.support.data_places import checked_places
from streamlog.cli.support.options import place_options, setting_paths, settings_options


@click.command()
@place_options
@settings_options
def doctor(state: State, file: str | None, more: dict[str, str], **flags: Any) -> None:
    """Check stores, disk and machine, and say what they cost.

    The options are those of serve. Proves what the engine relies on: conditional PUTs, lists,
    ranges, deletes, visibility, transactions, watches, syncs; measures latency and throughput. What
    it writes lies under doctor/ in the store and is removed again, after Ctrl-C too; a folder that
    has nothing in it yet stays so. Where there is data, run it as the user that the node runs as.
    It takes up to a few minutes with a slow store.

    Exit code 1 when a check failed: do not keep data there.
    """
    import asyncio
    from dataclasses import replace

    from streamlog import settings
    from streamlog.doctor.examination import Examination
    from streamlog.doctor.findings import CheckOutcome
    from streamlog.server.listeners.kafka_addresses import kafka_addresses

    loaded = settings.load(file, None, {**setting_paths(flags), **more})
    node = checked_places(loaded)
    examination = Examination(
        replace(loaded, node=node),
        lambda name: note(f"… {name}"),
        {address.name: address.listen for address in kafka_addresses(node)},
    )
    checks = asyncio.run(examination.run())
    failures = [check.name for check in checks if check.outcome is CheckOutcome.FAIL]
    if state.json:
        emit(
            {
                "ok": not failures,
                "store": node.store,
                "meta": node.meta,
                "wal": examination.wal,
                "findings": [
                    {
                        "name": check.name,
                        "outcome": check.outcome.value,
                        "detail": check.detail,
                        "advice": check.advice,
                        "figures": dict(check.figures),
                    }
                    for check in checks
                ],
            }
        )
    else:
        table(
            ("outcome", "check", "found"),
            [(check.outcome.value, check.name, check.detail) for check in checks],
        )
        advice: dict[tuple[CheckOutcome, str], list[str]] = {}
        for check in checks:
            if check.advice:
                advice.setdefault((check.outcome, check.advice), []).append(check.name)
        for (outcome, text), names in advice.items():
            click.echo(f"\n{outcome.value} {', '.join(names)}: {text}")
        if failures:
            click.echo(f"\nNot a place for data: {', '.join(failures)} failed.")
    if failures:
        click.get_current_context().exit(1)
