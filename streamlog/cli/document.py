"""Writes docs/cli.md from the commands' own help; `--check` says whether it is up to date.

python -m streamlog.cli.document [--check]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from streamlog.cli.main import cli

TARGET = Path("docs/cli.md")
WIDTH = 100

HEAD = """\
# Command line
Made from the commands' own help by `python -m streamlog.cli.document`; do not edit.

Every command takes `-h` or `--help`, every one that talks to a node takes `--server HOST:PORT`
(environment `STREAMLOG_SERVER`; a missing port is 9644, `http://` before it is dropped, `https://`
means `--tls`) and the options of TLS that `streamlog --help` explains, and all take `--json`: one
JSON value on stdout, or one a line where there are many. These may stand before the command as
well. An address or an option that is wrong is refused before anything is opened.

A command that waits for input from a terminal, or for records, says so on stderr, unless a program
reads its output (`consume --json`, `kv watch` into a pipe). A node that does not answer within
`--timeout` ends it with exit code 1, and the message names the address.

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | failed; one line on stderr says what and what to do, with `--json` as a JSON object |
| 2 | wrong usage |
| 129, 143 | `produce` ended by SIGHUP or SIGTERM; it says how many of the first lines are stored |
| 130 | interrupted by Ctrl-C; `produce` says how many of the first lines are stored |
| 141 | the reader of the output went away, as in `streamlog consume t \\| head` |

```
streamlog produce t < access.log                                        # one record a line
streamlog produce t --transactional-id job < access.log                 # all lines, or none
streamlog consume t --isolation read_committed                          # what was committed
streamlog consume t --from earliest --until-end | cmp access.log -      # the same bytes
streamlog consume t --from -10m --format json | jq .value               # the last 10 minutes
streamlog consume t --from -100 --format '%p %o %T %k %s\\n'  # the last 100 of each partition
streamlog consume t --from 2026-01-31T12:00:00Z --until-end > copy.log
streamlog topic create t --partitions 4 --config retention.ms=3600000
streamlog log dump t --partition 0                                      # as Kafka's dump tool
```
"""


def document() -> str:
    return HEAD + "".join(
        _sections(cli, click.Context(cli, info_name="streamlog", **cli.context_settings))
    )


def _sections(command: click.Command, ctx: click.Context) -> Iterator[str]:
    ctx.terminal_width = ctx.max_content_width = WIDTH
    yield f"\n## {ctx.command_path}\n```\n{command.get_help(ctx).rstrip()}\n```\n"
    if isinstance(command, click.Group):
        for name in command.list_commands(ctx):
            child = command.get_command(ctx, name)
            assert child is not None
            yield from _sections(child, click.Context(child, info_name=name, parent=ctx))


def main() -> int:
    parser = argparse.ArgumentParser(description="Writes docs/cli.md from the commands' help.")
    parser.add_argument("--check", action="store_true")
    text = document()
    if parser.parse_args().check:
        if TARGET.exists() and TARGET.read_text("utf-8") == text:
            return 0
        print(f"{TARGET} is not what the commands say; run: make docs")
        return 1
    TARGET.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
