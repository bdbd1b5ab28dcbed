"""Writes docs/config.md and docs/topic-settings.md from the settings classes.

`--check` only tells whether they are up to date.

python -m streamlog.settings.document [--check]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path

from streamlog.settings import topic_document
from streamlog.settings.draft_names import DRAFT_NAMES, DRAFT_PLUGIN_CONFIG, PLUGIN_CONFIG
from streamlog.settings.schema import Knob, knobs
from streamlog.settings.values import written

TARGET = Path("docs/config.md")
TOPICS_TARGET = Path("docs/topic-settings.md")

HEAD = """\
# Settings
Made from the settings classes by `python -m streamlog.settings.document`; do not edit.

A setting comes from, first match wins: a flag, an environment variable, the TOML file (`--config`),
its default. `streamlog config show` prints every value and where it comes from.

A setting marked **At run time, too** may also be set while nodes run, for one node (`streamlog
config alter --broker 1 --config NAME=VALUE`) or for all (`--all-brokers`); over Kafka's protocol it
is a broker's setting (`kafka-configs`), and those of `[broker]` go by their name alone. It is kept
in the metadata store, followed by every node at once, and outlives a restart. What counts, first
match wins: the topic's own setting, that of this node at run time, that of all nodes at run time,
the static one as above. The same is true of every broker setting that a topic setting follows from
([topic-settings.md](topic-settings.md) lists them), even where `[broker]` lacks it. All other
settings are read at the start, and a change of them at run time is refused.

In the file a setting stands in its table under its name; Kafka's names are dotted and may be
written plain or quoted. The environment variable is `STREAMLOG_`, the table, `__`, the name, in
upper case, with `_` for each `.` (`STREAMLOG_ENGINE__APPEND__APPEND_BYTES_MAX`,
`STREAMLOG_BROKER__NUM_PARTITIONS`); settings of `[node]` may leave the table out
(`STREAMLOG_LISTEN`). An unknown name is an error that names the nearest known one. Kubernetes makes
variables of this form for a Service that is called `streamlog`: turn them off in the pod, by
`enableServiceLinks: false`.

`STREAMLOG_CODEC` is no setting: `native` or `pure` chooses the codec of every process that has it;
unset, it is the compiled one where that is installed (`streamlog --version` says which).

```toml
[node]
data = "/var/lib/streamlog"
listen = "127.0.0.1:9644"

[broker]
num.partitions = 4
log.retention.hours = 24

[topic-defaults]
max.message.bytes = 2000000
```

Names of KIP-405's first draft are taken at the start, with a warning: %s.

`[topic-defaults]` takes Kafka's topic settings ([topic-settings.md](topic-settings.md)); what is
not there follows from `[broker]`.
"""


def document() -> str:
    drafts = {**DRAFT_NAMES, DRAFT_PLUGIN_CONFIG: f"{PLUGIN_CONFIG}.…"}
    return HEAD % _draft_names(drafts) + "".join(_tables())


def _draft_names(drafts: Mapping[str, str]) -> str:
    return ", ".join(f"`{name}` for `{today}`" for name, today in drafts.items())


def _tables() -> Iterator[str]:
    for table, group in groupby(knobs().values(), key=lambda knob: knob.table):
        yield f"\n## `[{table}]`\n"
        yield "| setting | default | allowed | what it does |\n|---|---|---|---|\n"
        yield from (_row(knob) for knob in group)


def _row(knob: Knob) -> str:
    default = f"`{written(knob.default)}`" if knob.default not in (None, "") else ""
    text = " ".join(knob.doc.split()).replace("|", "\\|")
    if knob.renamed_from:
        text += f" (Before: `{knob.renamed_from}`, still taken, with a warning.)"
    if knob.is_dynamic:
        text += " **At run time, too.**"
    return f"| `{knob.name}` | {default} | {_allowed(knob)} | {text} |\n"


def _allowed(knob: Knob) -> str:
    if knob.choices:
        return ", ".join(f"`{choice}`" for choice in knob.choices)
    if knob.kind is bool:
        return "`true`, `false`"
    if knob.minimum is not None and knob.maximum is not None:
        return f"{knob.minimum:,} to {knob.maximum:,}"
    if knob.minimum is not None:
        return f"≥ {knob.minimum:,}"
    return f"≤ {knob.maximum:,}" if knob.maximum is not None else knob.kind.__name__


def main() -> int:
    parser = argparse.ArgumentParser(
        description=f"Writes {TARGET} and {TOPICS_TARGET} from the settings classes."
    )
    parser.add_argument("--check", action="store_true")
    is_check = parser.parse_args().check
    is_stale = False
    for target, text in ((TARGET, document()), (TOPICS_TARGET, topic_document.document())):
        if not is_check:
            target.write_text(text, "utf-8")
        elif not target.exists() or target.read_text("utf-8") != text:
            print(f"{target} is not what the settings say; run: make docs")
            is_stale = True
    if not is_check:
        print(f"{TARGET}: {len(knobs())} settings")
    return int(is_stale)


if __name__ == "__main__":
    sys.exit(main())
