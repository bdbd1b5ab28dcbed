"""Settings: precedence, types, limits, and what a wrong one says."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamlog import settings
from streamlog.errors import InvalidConfig
from streamlog.settings import document
from streamlog.settings.schema import earlier_paths, knobs


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_flags_win_over_environment_over_file_over_default(tmp_path: Path) -> None:
    file = write(
        tmp_path / "s.toml",
        '[node]\nlisten = "127.0.0.1:1"\nhttp_listen = "127.0.0.1:2"\nnode_id = 3\n'
        "[broker]\nnum.partitions = 4\n[engine.append]\nappend_bytes_max = 2_000_000\n",
    )
    loaded = settings.load(
        file,
        {"STREAMLOG_LISTEN": "127.0.0.1:11", "STREAMLOG_NODE__HTTP_LISTEN": "127.0.0.1:12"},
        {"listen": "127.0.0.1:21", "wal": None},
    )
    assert loaded.node.listen == "127.0.0.1:21"
    assert loaded.node.http_listen == "127.0.0.1:12"
    assert loaded.node.node_id == 3
    assert loaded.broker.num_partitions == 4
    assert loaded.engine.append.append_bytes_max == 2_000_000
    shown = {setting.path: setting for setting in loaded.show()}
    assert shown["node.listen"].source == "flag"
    assert shown["node.http_listen"].source == "environment STREAMLOG_NODE__HTTP_LISTEN"
    assert shown["broker.num.partitions"].source == f"file {file}"
    assert shown["node.wal"].source == "default"


@pytest.mark.parametrize("line", ["log.retention.hours = 2", '"log.retention.hours" = 2'])
def test_kafka_names_may_be_quoted(tmp_path: Path, line: str) -> None:
    loaded = settings.load(write(tmp_path / "s.toml", f"[broker]\n{line}\n"), {})
    assert loaded.topic_defaults()["retention.ms"] == str(2 * 3_600_000)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('"retention.ms" = "soon"', "retention.ms is 'soon'"),
        ('"retention.sm" = 1', "did you mean retention.ms"),
    ],
)
def test_a_wrong_topic_default_names_its_file_and_table(
    tmp_path: Path, line: str, words: str
) -> None:
    file = tmp_path / "node.toml"
    file.write_text(f"[topic-defaults]\n{line}\n")
    with pytest.raises(InvalidConfig) as raised:
        settings.load(file, {})
    assert f"[topic-defaults] (file {file}): " in raised.value.message
    assert words in raised.value.message
    with pytest.raises(InvalidConfig, match="environment STREAMLOG_TOPIC_DEFAULTS__RETENTION_MS"):
        settings.load(None, {"STREAMLOG_TOPIC_DEFAULTS__RETENTION_MS": "soon"})


def test_topic_defaults_win_over_the_broker(tmp_path: Path) -> None:
    file = write(
        tmp_path / "s.toml",
        "[broker]\nmessage.max.bytes = 5\n[topic-defaults]\nmax.message.bytes = 7\n",
    )
    loaded = settings.load(file, {"STREAMLOG_TOPIC_DEFAULTS__RETENTION_MS": "9"})
    assert loaded.topic_defaults()["max.message.bytes"] == "7"
    assert loaded.topic_defaults()["retention.ms"] == "9"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[node]\nlisen = '1'\n", "did you mean node.listen?"),
        ("[broker]\nnum.partition = 1\n", "did you mean broker.num.partitions?"),
        ("[broker]\nnum.partitions = 0\n", "1 to"),
        ("[broker]\nnum.partitions = 'many'\n", "whole number"),
        ("[engine.flush]\nflush_bytes_target = 0\n", "1024 or more"),
        ("[node]\nwal = 'tape'\n", "one of disk, object"),
        ("[node]\ninsecure = 'perhaps'\n", "true or false"),
        ("[node\n", "not TOML"),
        ("[node]\nnode_id = " + "9" * 5000, "not TOML"),
    ],
)
def test_wrong_settings_say_what_to_do(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(InvalidConfig, match=r"s\.toml") as caught:
        settings.load(write(tmp_path / "s.toml", text), {})
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("variable", "text", "says"),
    [
        ("NODE_ID", "+-5", "a whole number"),
        ("NODE_ID", "5__0", "a whole number"),
        ("NODE_ID", "²", "a whole number"),
        ("NODE_ID", "9" * 5000, "a whole number"),
        ("ENGINE__FLUSH__PUT_RATE_MAX_PER_S", "nan", "a number below 2^63"),
        ("ENGINE__FLUSH__PUT_RATE_MAX_PER_S", "inf", "a number below 2^63"),
        ("LOG__TOPICS_MAX", "9" * 400, "a number below 2^63"),
    ],
)
def test_a_number_that_no_setting_can_have_is_refused(variable: str, text: str, says: str) -> None:
    with pytest.raises(InvalidConfig, match=f"STREAMLOG_{variable}") as refused:
        settings.load(None, {f"STREAMLOG_{variable}": text})
    assert says in str(refused.value)


def test_a_missing_file_and_an_unknown_variable_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="No such file"):
        settings.load(tmp_path / "none.toml", {})
    with pytest.raises(InvalidConfig, match="STREAMLOG_BROKER__NUM_PARTITIONS"):
        settings.load(None, {"STREAMLOG_BROKER__NUM_PARTITION": "1"})
    assert settings.load(None, {"STREAMLOG_SERVER": "h:1", "PATH": "x"}).node.node_id == 1


def test_auto_create_is_on_in_dev_and_off_in_serve() -> None:
    plain = settings.load(None, {})
    assert plain.for_mode("dev").broker.auto_create_topics_enable is True
    assert plain.for_mode("serve").broker.auto_create_topics_enable is False
    loaded = settings.load(None, {"STREAMLOG_BROKER__AUTO_CREATE_TOPICS_ENABLE": "off"})
    assert loaded.for_mode("dev").broker.auto_create_topics_enable is False


def test_defaults_lie_inside_their_limits_and_variables_are_unique() -> None:
    variables = [knob.environment for knob in knobs().values()]
    assert len(variables) == len(set(variables))
    for knob in knobs().values():
        if isinstance(knob.default, int | float) and not isinstance(knob.default, bool):
            assert knob.minimum is None or knob.default >= knob.minimum, knob.path
            assert knob.maximum is None or knob.default <= knob.maximum, knob.path


def test_every_number_has_a_least_value() -> None:
    """A size or a wait of 0 or below is a slip in most places, and a traceback or a busy loop."""
    unbounded = [
        knob.path
        for knob in knobs().values()
        if knob.kind in (int, float) and knob.minimum is None and not knob.choices
    ]
    assert unbounded == []


def test_the_document_names_every_setting() -> None:
    text = document.document()
    assert all(f"`{knob.name}`" in text for knob in knobs().values())


def test_an_earlier_name_is_taken_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Wherever it is given: file, environment or flag."""
    file = write(tmp_path / "s.toml", "[engine.read]\nwalk_bytes_max = 1048576\n")
    name = "engine.read.walk_bytes_max"
    places: list[tuple[Path | None, dict[str, str], dict[str, str]]] = [
        (file, {}, {}),
        (None, {"STREAMLOG_ENGINE__READ__WALK_BYTES_MAX": "1048576"}, {}),
        (None, {}, {name: "1048576"}),
    ]
    for place in places:
        assert settings.load(*place).engine.read.object_scan_bytes_max == 1_048_576
        assert name in caplog.text
        assert "is called engine.read.object_scan_bytes_max now" in caplog.text
        caplog.clear()


@pytest.mark.parametrize("earlier", sorted(earlier_paths()))
def test_a_setting_is_given_under_one_name(tmp_path: Path, earlier: str) -> None:
    today = earlier_paths()[earlier]
    assert earlier not in knobs()
    default = knobs()[today].default
    value = 1 if default is None else default
    with pytest.raises(InvalidConfig, match=f"keep {today} alone"):
        settings.load(None, {}, {earlier: value, today: value})


@pytest.mark.parametrize("name", ["log.dirs", "broker.log.dirs", "broker.log.dir"])
def test_several_folders_of_logs_are_refused_with_a_hint(name: str) -> None:
    with pytest.raises(InvalidConfig, match=r"one folder of logs, node\.log_dir"):
        settings.load(None, {}, {name: "/a,/b"})
