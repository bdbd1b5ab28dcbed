"""Topics whose settings have the names that texts about tiered storage give them."""

from __future__ import annotations

import pytest

from streamlog.errors import InvalidConfig
from streamlog.log.api import topic_config
from streamlog.log.configs.draft_names import DRAFT_NAMES
from streamlog.testing.logs.log_conformance import refused
from tests.log.cluster import run


def test_a_topic_is_created_and_changed_under_them_and_keeps_todays(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(made, logs):
        info = await logs.create_topic("t", 1, {"log.retention.ms": "5000"})
        assert info.configs == {"retention.ms": "5000"}
        assert "log.retention.ms (topic t) is called retention.ms" in caplog.text
        changed = await logs.alter_topic_configs("t", set={"remote.retention.bytes": "7"})
        assert changed.configs == {"retention.ms": "5000", "retention.bytes": "7"}
        assert "remote.retention.bytes" in caplog.text
        changed = await logs.alter_topic_configs("t", delete=["remote.retention.period"])
        assert changed.configs == {"retention.bytes": "7"}
        both = {"remote.retention.period": "1", "retention.ms": "1"}
        error = await refused(InvalidConfig, logs.create_topic("u", 1, both))
        assert "keep retention.ms alone" in str(error)

    run(test)


def test_each_stands_for_a_setting_that_there_is() -> None:
    assert set(DRAFT_NAMES.values()) <= set(topic_config.public_names())
    assert not DRAFT_NAMES.keys() & set(topic_config.public_names())
