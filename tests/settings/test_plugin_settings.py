"""Where plug-ins of tiered storage are found, and which settings they get."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from streamlog import settings
from streamlog.errors import InvalidConfig
from streamlog.testing.basic_kv import BasicKV
from streamlog.testing.clocks import ManualClock
from streamlog.wiring.tiers import tier_plugins

CODE = """
from tests.support.memory_tier import MemoryTier

class Plugin(MemoryTier):
    def configure(self, configs):
        self.configs = dict(configs)
"""
BROKER = """
[broker]
remote.log.storage.manager.class.name = "{module}:Plugin"
remote.log.storage.manager.class.path = "/nowhere:{folder}"
remote.log.storage.manager.impl.prefix = "mine."
remote.log.metadata.manager.impl.prefix = "theirs."
mine.place = "here"
"mine.deep.size" = 7
theirs.place = "there"
"""


def test_a_plug_in_is_found_in_its_folder_and_gets_what_begins_with_its_prefix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    folder, file = tmp_path / "plug-ins", tmp_path / "s.toml"
    folder.mkdir()
    (folder / "plugin_in_a_folder.py").write_text(CODE)
    file.write_text(BROKER.format(module="plugin_in_a_folder", folder=folder))
    config = settings.load(file, {}).remote_log_config()
    assert config.metadata_configs == {"place": "there"}
    plugins = tier_plugins(None, BasicKV(), config, ManualClock(), 1)  # type: ignore[arg-type]
    assert vars(plugins.storage)["configs"] == {"place": "here", "deep.size": "7"}


def test_a_plug_in_that_is_not_found_is_told_with_the_setting_of_its_folder(
    tmp_path: Path,
) -> None:
    file = tmp_path / "s.toml"
    file.write_text(BROKER.format(module="plugin_that_is_missing", folder=tmp_path))
    config = settings.load(file, {}).remote_log_config()
    with pytest.raises(InvalidConfig, match=r"remote\.log\.storage\.manager\.class\.path"):
        tier_plugins(None, BasicKV(), config, ManualClock(), 1)  # type: ignore[arg-type]


def test_settings_of_the_node_stay_its_own_whatever_a_prefix_is() -> None:
    flags = {
        "broker.remote.log.storage.manager.impl.prefix": "log.",
        "broker.log.retention.ms": "77",
        "broker.log.place": "here",
    }
    loaded = settings.load(None, {}, flags)
    assert loaded.broker.log_retention_ms == 77
    assert loaded.remote_log_config().storage_configs == {"place": "here"}
    with pytest.raises(InvalidConfig, match="empty"):
        settings.load(None, {}, {"broker.remote.log.storage.manager.impl.prefix": ""})
    with pytest.raises(InvalidConfig, match="is no setting"):
        settings.load(None, {}, {**flags, "broker.rsm.config.place": "here"})
