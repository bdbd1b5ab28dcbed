"""`streamlog doctor`: is this a place for data?"""

from __future__ import annotations

from typing import Any

import click

from streamlog.cli.output import emit, note, table
from streamlog.cli.state import State
from streamlog.cli.support.data_places import checked_places
from streamlog.cli.support.options import place_options, settings_options


@click.command()
@place_options
@settings_options
def doctor(state: State, file: str | None, more: dict[str, str], **flags: Any) -> None:
    """Check stores, disk and machine, and say what they cost.

    The options are those of serve. Proves what the engine relies on: conditional PUTs, lists,
    ranges, deletes, visibility, transactions, watches, syncs; measures latency and throughput. What
    it writes lies under doctor/ in the store and is removed again, after Ctrl-C too. It takes up to
    a few minutes with a slow store.

    Exit code 1 when a check failed: do not keep data there.
    """
    import asyncio
    from dataclasses import replace

    from streamlog import settings
    from streamlog.doctor.examination import Examination
    from streamlog.doctor.findings import CheckOutcome

    loaded = settings.load(file, None, {**flags, **more})
    node = checked_places(loaded)
    examination = Examination(replace(loaded, node=node), lambda name: note(f"… {name}"))
    found = asyncio.run(examination.run())
    failures = [one.name for one in found if one.outcome is CheckOutcome.FAIL]
    if state.json:
        emit(
            {
                "ok": not failures,
                "store": node.store,
                "meta": node.meta,
                "wal": examination.wal,
                "findings": [
                    {
                        "name": one.name,
                        "outcome": one.outcome.value,
                        "detail": one.detail,
                        "advice": one.advice,
                        "figures": dict(one.figures),
                    }
                    for one in found
                ],
            }
        )
    else:
        table(
            ("outcome", "check", "found"),
            [(one.outcome.value, one.name, one.detail) for one in found],
        )
        advice: dict[tuple[CheckOutcome, str], list[str]] = {}
        for one in found:
            if one.advice:
                advice.setdefault((one.outcome, one.advice), []).append(one.name)
        for (outcome, what), names in advice.items():
            click.echo(f"\n{outcome.value} {', '.join(names)}: {what}")
        if failures:
            click.echo(f"\nNot a place for data: {', '.join(failures)} failed.")
    if failures:
        click.get_current_context().exit(1)
