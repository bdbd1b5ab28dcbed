"""The options of both benchmark commands."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path


def options(prog: str, about: str | None, known: Sequence[str], json: str) -> argparse.Namespace:
    """`names` (default: all known names), `scale`, `json`, `data`."""
    return parsed(parser(prog, about, known, json), known)


def parser(
    prog: str, about: str | None, known: Sequence[str], json: str
) -> argparse.ArgumentParser:
    """For a command with options of its own."""
    made = argparse.ArgumentParser(prog=prog, description=about)
    made.add_argument("names", nargs="*", help=f"some of {', '.join(known)}; all by default")
    made.add_argument("--scale", type=float, default=1.0, help="0.1 is a quick look")
    made.add_argument("--json", type=Path, default=Path(json))
    made.add_argument("--data", type=Path, help="a folder on the disk to measure")
    return made


def parsed(made: argparse.ArgumentParser, known: Sequence[str]) -> argparse.Namespace:
    found = made.parse_args()
    unknown = set(found.names) - set(known)
    if unknown:
        made.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    found.names = found.names or list(known)
    return found
