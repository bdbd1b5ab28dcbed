"""Topic settings under the names of drafts and texts about tiered storage: taken, with a warning.

KIP-405's first draft and the articles about it name settings that Kafka has shipped under other
names. They are taken where a topic is created or changed, and kept under today's.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from streamlog.errors import InvalidConfig

log = logging.getLogger(__name__)

DRAFT_NAMES: Mapping[str, str] = {
    "local.log.retention.ms": "local.retention.ms",
    "log.retention.ms": "retention.ms",
    "remote.retention.bytes": "retention.bytes",
    "remote.retention.period": "retention.ms",
}
"""Name → today's. The draft's retention of the remote part is that of the whole log, in ms."""


def by_todays_names(configs: Mapping[str, str], where: str) -> dict[str, str]:
    """`configs` under today's names. Errors: InvalidConfig for a setting under two names."""
    found: dict[str, str] = {}
    for name, text, today in zip(
        configs, configs.values(), todays_names(configs, where), strict=True
    ):
        if today in found:
            raise InvalidConfig(
                f"{name[:80]} ({where}) and another name of {today} are given: keep {today} alone",
                name=name[:80],
            )
        found[today] = text
    return found


def todays_names(names: Iterable[str], where: str) -> list[str]:
    """Today's name of each, in their order."""
    found = []
    for name in names:
        today = DRAFT_NAMES.get(name, name)
        if today != name:
            log.warning("topic setting %s (%s) is called %s: use that name", name, where, today)
        found.append(today)
    return found
