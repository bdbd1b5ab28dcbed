"""Settings under names of earlier releases and of drafts: taken, with a warning."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Any

from streamlog.errors import InvalidConfig
from streamlog.log.configs.draft_names import DRAFT_NAMES as DRAFT_TOPIC_NAMES
from streamlog.settings.draft_names import PLUGIN_CONFIG, is_plugin_config, plugin_configs
from streamlog.settings.schema import earlier_paths

log = logging.getLogger(__name__)

TOPIC_DEFAULTS = "topic-defaults"
Given = tuple[str, Any, str]
"""Path, value, and where it was given."""


def by_todays_names(layer: Iterable[Given]) -> list[Given]:
    """Paths under the names of today. Errors: InvalidConfig for a setting under both names."""
    given = [one for drafted in layer for one in _plugin_configs_today(drafted)]
    paths = {path for path, _, _ in given}
    renamed = []
    for path, value, where in given:
        today = _todays_path(path)
        if today != path:
            if today in paths:
                raise InvalidConfig(
                    f"{path} ({where}) is an earlier name of {today}, which is given there too: "
                    f"keep {today} alone",
                    name=path,
                )
            paths.add(today)
            log.warning("%s (%s) is called %s now: use that name", path, where, today)
        renamed.append((today, value, where))
    return renamed


def _todays_path(path: str) -> str:
    topic = path.removeprefix(f"{TOPIC_DEFAULTS}.")
    if topic != path:
        return f"{TOPIC_DEFAULTS}.{DRAFT_TOPIC_NAMES.get(topic, topic)}"
    return earlier_paths().get(path, path)


def _plugin_configs_today(given: Given) -> Iterator[Given]:
    """The same, or what a storage plug-in gets by its draft's name. Errors: InvalidConfig."""
    path, value, where = given
    name = path.removeprefix("broker.")
    if not is_plugin_config(name):
        yield given
        return
    log.warning("%s (%s) is called %s.… now: use that name", path, where, PLUGIN_CONFIG)
    try:
        for today, text in plugin_configs(name, value):
            yield today, text, where
    except ValueError as error:
        raise InvalidConfig(
            f"{path} ({where}): {error}; give {PLUGIN_CONFIG}.NAME = VALUE instead", name=path
        ) from error
