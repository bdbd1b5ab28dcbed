"""Broker settings under the names of KIP-405's first draft, and one that KIP-956 misspells. Pure.

The draft's names are taken wherever settings are read at the start, with a warning that names
today's. At run time they are refused with it: what is stored there has one name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

DRAFT_NAMES: Mapping[str, str] = {
    "remote.log.storage.enable": "remote.log.storage.system.enable",
    "remote.retention.bytes": "log.retention.bytes",
    "remote.retention.period": "log.retention.ms",
    "remote.storage.manager.class": "remote.log.storage.manager.class.name",
    "rlm_process_interval_ms": "remote.log.manager.task.interval.ms",
    "rlm_retry_interval_ms": "remote.log.manager.task.retry.backoff.ms",
}
"""Name → today's, both of `[broker]`. The retention of the remote part is that of the whole log."""

DRAFT_PLUGIN_CONFIG = "remote.storage.manager.config"
"""What a storage plug-in gets: a table, or text as `name=value,name=value`."""
PLUGIN_CONFIG = "rsm.config"

MISTAKEN: Mapping[str, str] = {
    "remote.log.manager.read.max.bytes.per.second": "remote.log.manager.fetch.max.bytes.per.second",
}
"""KIP-956 writes it once, and means the other."""


def is_plugin_config(name: str) -> bool:
    return name == DRAFT_PLUGIN_CONFIG or name.startswith(f"{DRAFT_PLUGIN_CONFIG}.")


def plugin_configs(name: str, value: object) -> Iterator[tuple[str, object]]:
    """Today's names and values of a setting for which `is_plugin_config`.

    Errors: ValueError for text that is not of this form.
    """
    if name != DRAFT_PLUGIN_CONFIG:
        yield f"{PLUGIN_CONFIG}.{name.removeprefix(f'{DRAFT_PLUGIN_CONFIG}.')}", value
        return
    for part in str(value).split(","):
        key, equals, text = part.partition("=")
        if not equals or not key.strip():
            raise ValueError(f"{part.strip()!r} has no name and value")
        yield f"{PLUGIN_CONFIG}.{key.strip()}", text.strip()
