"""Settings under the names of KIP-405's first draft, and the key that KIP-956 misspells."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamlog import settings
from streamlog.errors import Invalid, InvalidConfig
from streamlog.settings import dynamic
from streamlog.settings.draft_names import DRAFT_NAMES

COPY = "remote.log.manager.copy.max.bytes.per.second"
FETCH = "remote.log.manager.fetch.max.bytes.per.second"
MISSPELT = "remote.log.manager.read.max.bytes.per.second"


def test_the_drafts_names_are_taken_with_a_warning_that_names_todays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "s.toml"
    file.write_text(
        "[broker]\n"
        "remote.log.storage.enable = false\n"
        'remote.storage.manager.class = "package:Storage"\n'
        "remote.retention.period = 90000\n"
        "remote.retention.bytes = 1000000\n"
        "rlm_process_interval_ms = 7000\n"
        "rlm_retry_interval_ms = 70\n"
    )
    loaded = settings.load(file, {})
    config = loaded.remote_log_config()
    assert not config.is_enabled
    assert config.storage_class == "package:Storage"
    assert (config.task_interval_ms, config.retry_backoff_ms) == (7000, 70)
    defaults = loaded.topic_defaults()
    assert (defaults["retention.ms"], defaults["retention.bytes"]) == ("90000", "1000000")
    for name, today in DRAFT_NAMES.items():
        assert f"broker.{name} (file {file}) is called broker.{today} now" in caplog.text


def test_the_drafts_names_are_variables_too(caplog: pytest.LogCaptureFixture) -> None:
    loaded = settings.load(
        None,
        {
            "STREAMLOG_BROKER__RLM_PROCESS_INTERVAL_MS": "5",
            "STREAMLOG_BROKER__REMOTE_STORAGE_MANAGER_CLASS": "a:B",
        },
    )
    assert loaded.broker.remote_log_manager_task_interval_ms == 5
    assert loaded.broker.remote_log_storage_manager_class_name == "a:B"
    assert "remote.log.manager.task.interval.ms" in caplog.text


@pytest.mark.parametrize(
    "text",
    [
        '[broker.remote.storage.manager.config]\ndir = "/mnt"\nsub.key = "x=y"\n',
        '[broker]\nremote.storage.manager.config = "dir=/mnt, sub.key=x=y"\n',
    ],
)
def test_what_the_draft_gives_a_storage_plug_in(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "s.toml"
    file.write_text(text)
    configs = settings.load(file, {}).remote_log_config().storage_configs
    assert configs == {"dir": "/mnt", "sub.key": "x=y"}
    assert "rsm.config" in caplog.text


def test_a_plug_ins_text_without_names_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "s.toml"
    file.write_text('[broker]\nremote.storage.manager.config = "/etc/hdfs.xml"\n')
    with pytest.raises(InvalidConfig, match=r"rsm\.config\.NAME = VALUE"):
        settings.load(file, {})


def test_topic_defaults_have_the_drafts_names_of_topic_settings(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "s.toml"
    file.write_text("[topic-defaults]\nremote.retention.period = 90000\n")
    assert settings.load(file, {}).topic_defaults()["retention.ms"] == "90000"
    assert "topic-defaults.retention.ms now" in caplog.text
    file.write_text("[topic-defaults]\nremote.retention.period = 1\nlog.retention.ms = 2\n")
    with pytest.raises(InvalidConfig, match=r"keep topic-defaults\.retention\.ms alone"):
        settings.load(file, {})


def test_the_misspelt_key_is_refused_with_the_one_that_is_meant(tmp_path: Path) -> None:
    file = tmp_path / "s.toml"
    file.write_text(f"[broker]\n{MISSPELT} = 5\n")
    with pytest.raises(InvalidConfig, match=rf"use {FETCH}"):
        settings.load(file, {})
    for name in (MISSPELT, f"broker.{MISSPELT}"):
        with pytest.raises(InvalidConfig, match=rf"use {FETCH}"):
            dynamic.setting_of(name)


def test_rates_change_at_run_time_and_windows_and_drafts_names_do_not() -> None:
    for name in (COPY, FETCH):
        dynamic.check(name, "1234")
        with pytest.raises(InvalidConfig, match="1 or more"):
            dynamic.check(name, "0")
    for operation in ("copy", "fetch"):
        for name in ("num", "size.seconds"):
            with pytest.raises(Invalid, match="is read when a node starts"):
                dynamic.setting_of(f"remote.log.manager.{operation}.quota.window.{name}")
    for name, today in DRAFT_NAMES.items():
        with pytest.raises(InvalidConfig, match=rf"use {today}"):
            dynamic.setting_of(name)


def test_kafkas_defaults_of_tiered_storage() -> None:
    """RemoteLogManagerConfig's, and that tiering costs nothing unless a topic has it."""
    config = settings.load(None, {}).remote_log_config()
    assert (config.copy_bytes_per_second, config.fetch_bytes_per_second) == (2**63 - 1,) * 2
    assert (config.copy_windows, config.copy_window_s) == (61, 1)
    assert (config.fetch_windows, config.fetch_window_s) == (11, 1)
    assert (config.copier_tasks, config.expiration_tasks, config.reader_tasks) == (10, 10, 10)
    assert (config.reads_pending_max, config.custom_metadata_bytes_max) == (100, 128)
    assert (config.task_interval_ms, config.fetch_wait_ms) == (30_000, 500)
    assert (config.retry_backoff_ms, config.retry_backoff_ms_max) == (500, 30_000)
    assert config.retry_jitter == 0.2
    assert config.index_cache_bytes == 1 << 30
