"""The text of docs/topic-settings.md, made from the class of topic settings."""

from __future__ import annotations

from collections.abc import Iterator

from streamlog.log.api import topic_config
from streamlog.settings.broker import BrokerConfig

HEAD = """\
# Topic settings
Made from the settings class by `python -m streamlog.settings.document`; do not edit.

A topic's settings have Kafka's names, defaults and least values (those of Kafka 4.1). They are
given when the topic is created (`streamlog topic create NAME --config retention.ms=86400000`) or
changed later (`streamlog topic alter`); open partitions follow at once. What a topic does not set
follows from the node's `[topic-defaults]`, then from `[broker]` ([config.md](config.md)).
`streamlog topic describe` shows what is set; DescribeConfigs shows every setting, its value, and
where the value comes from.

Every setting in this table has an effect. A value outside its range is refused with
`InvalidConfig`, which names the range, at creation and at a change; a value that was accepted once,
by an earlier release, stays in force.

| setting | default | allowed | broker's setting | what it does |
|---|---|---|---|---|
"""

CAPS = """
## What a node cannot carry
A record batch travels in one message and is stored by one append, so `max.message.bytes` has a
bound that follows from the node's settings: the least of `limits.message_bytes_max` less 1 KiB,
`engine.append.batch_bytes_max` and, with `wal=disk`, a quarter of `engine.wal.wal_bytes_max`. A
larger value is refused, with the bound in the error's `max_bytes`. A topic that has a larger value
already (or gets it from `message.max.bytes`) is open, and is capped: DescribeConfigs gives the
value in force, and what was given as `configured_value`; `streamlog topic describe` says "capped".

A batch above `max.message.bytes` is refused with `MessageTooLarge`, one above `segment.bytes` with
`RecordListTooLarge`, which is a `MessageTooLarge` too. `max_bytes` of both is the lesser of the two
settings: a client that splits the batch by it is not refused again.

## What is refused
| setting of Kafka | why a topic cannot have it here |
|---|---|
"""

TAIL = """
Any other name is an error that names the nearest known one. `internal.segment.bytes` is for tests,
as in Kafka: it takes the place of `segment.bytes`, without its least value, and is not listed.
"""


def document() -> str:
    return "".join((HEAD, *_rows(), CAPS, *_refused(), TAIL))


def _rows() -> Iterator[str]:
    # A broker setting and the topic's own: the same name with or without `log.`, but for these two.
    aliases = {"max.message.bytes": "message.max.bytes", "segment.ms": "log.roll.ms"}
    brokers = {name.replace("_", ".") for name in BrokerConfig.__slots__}
    for name in topic_config.public_names():
        broker = aliases.get(name, f"log.{name}")
        text = " ".join(topic_config.documentation(name).split()).replace("|", "\\|")
        default = topic_config.value_of(topic_config.DEFAULTS, name)
        shown = f"`{broker}`" if broker in brokers else ""
        yield f"| `{name}` | `{default}` | {_allowed(name)} | {shown} | {text} |\n"


def _allowed(name: str) -> str:
    rule = topic_config.rule_of(name)
    if rule["choices"]:
        return ", ".join(f"`{choice}`" for choice in rule["choices"])
    if rule["maximum"] is None:
        return f"≥ {rule['minimum']:,}"
    if rule["minimum"] == rule["maximum"]:
        return f"{rule['minimum']:,}"
    return f"{rule['minimum']:,} to {rule['maximum']:,}"


def _refused() -> Iterator[str]:
    for name, reason in sorted(topic_config.REFUSED.items()):
        yield f"| `{name}` | {reason} |\n"
