"""The text of docs/topic-settings.md, made from the class of topic settings."""

from __future__ import annotations

from collections.abc import Iterator

from streamlog.log.api import topic_config
from streamlog.log.api.topic_config import ConfigType
from streamlog.log.configs.broker_synonyms import SYNONYMS

HEAD = """\
# Topic settings
Made from the settings class by `python -m streamlog.settings.document`; do not edit.

A topic's settings have Kafka's names, defaults and least values (those of Kafka 4.1). They are
given when the topic is created (`streamlog topic create NAME --config retention.ms=86400000`) or
changed later (`streamlog topic alter`); open partitions follow at once. What a topic does not set
follows from the node's `[topic-defaults]`, then from `[broker]` ([config.md](config.md)).
`streamlog topic describe` shows what is set; DescribeConfigs shows every setting, its value, and
where the value comes from.

All topic settings of Kafka 4.1 are known and shown. They are of three kinds:
- **built**: it has an effect;
- **kept**: any value that Kafka takes is accepted, stored and shown, and has nothing to act on in
  a shared topic;
- **default only**: another value would promise what the node does not do, and is refused with the
  reason. The default is accepted, so that tools that spell it out work.

A value outside its range is refused with `InvalidConfig`, which names the range, at creation and at
a change, and nothing is changed; a value that was accepted once, by an earlier release, stays in
force.

## Built
| setting | default | allowed | broker's setting | what it does |
|---|---|---|---|---|
"""

KEPT = """
## Kept
| setting | default | allowed | broker's setting | why it has no effect on a shared topic |
|---|---|---|---|---|
"""

REFUSED = """
## Default only
| setting | the value accepted | broker's setting | why no other on a shared topic |
|---|---|---|---|
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
"""

TAIL = """
Any other name is an error that names the nearest known one. `internal.segment.bytes` is for tests,
as in Kafka: it takes the place of `segment.bytes`, without its least value, and is not listed.
"""


def document() -> str:
    return "".join(
        (HEAD, *_built(), KEPT, *_kept(), REFUSED, *_refused(), CAPS, TAIL),
    )


def _built() -> Iterator[str]:
    for name in topic_config.public_names():
        if name not in topic_config.KEPT and name not in topic_config.REFUSED:
            yield f"{_first_columns(name)} | {_text(topic_config.documentation(name))} |\n"


def _kept() -> Iterator[str]:
    for name, reason in sorted(topic_config.KEPT.items()):
        yield f"{_first_columns(name)} | {_text(reason)} |\n"


def _refused() -> Iterator[str]:
    for name, reason in sorted(topic_config.REFUSED.items()):
        default = topic_config.value_of(topic_config.DEFAULTS, name)
        yield f"| `{name}` | `{default}` | {_broker(name)} | {_text(reason)} |\n"


def _first_columns(name: str) -> str:
    default = topic_config.value_of(topic_config.DEFAULTS, name)
    shown = f"`{default}`" if default else ""
    return f"| `{name}` | {shown} | {_allowed(name)} | {_broker(name)}"


def _broker(name: str) -> str:
    brokers = SYNONYMS.get(name, ())
    return f"`{brokers[0]}`" if brokers else ""


def _text(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _allowed(name: str) -> str:
    rule, kind = topic_config.rule_of(name), topic_config.type_of(name)
    if rule["choices"]:
        return ", ".join(f"`{choice}`" for choice in rule["choices"])
    if kind is ConfigType.BOOLEAN:
        return "`true`, `false`"
    if kind is ConfigType.LIST:
        return "list"
    if rule["maximum"] is None:
        return f"≥ {rule['minimum']:,}"
    return f"{rule['minimum']:,} to {rule['maximum']:,}"
