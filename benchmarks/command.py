"""The options of both benchmark commands."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path


def options(prog: str, about: str | None, known: Sequence[str], json: str) -> argparse.Namespace:
    """`names` (default: all known names), `scale`, `json`, `data`."""
    parser = argparse.ArgumentParser(prog=prog, description=about)
    parser.add_argument("names", nargs="*", help=f"some of {', '.join(known)}; all by default")
    parser.add_argument("--scale", type=float, default=1.0, help="0.1 is a quick look")
    parser.add_argument("--json", type=Path, default=Path(json))
    parser.add_argument("--data", type=Path, help="a folder on the disk to measure")
    parsed = parser.parse_args()
    unknown = set(parsed.names) - set(known)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    parsed.names = parsed.names or list(known)
    return parsed
