"""Makes `tests/compat/v<N>/`: run it once, for a release that changes a format, and commit it.

    python -m tests.compat.make [N]

Never made again for a version that was released. In the folder: one packed data folder per WAL
mode (the WAL's files are mostly zeros), and what must come out of it.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tarfile
import tempfile
from pathlib import Path

from tests.compat.story import MODES, make

HERE = Path(__file__).resolve().parent


def main(version: str) -> None:
    target = HERE / f"v{version}"
    target.mkdir(exist_ok=True)
    for mode in MODES:
        with tempfile.TemporaryDirectory() as folder:
            data = Path(folder) / "data"
            expected = asyncio.run(make(data, mode))
            with tarfile.open(target / f"{mode}.tar.xz", "w:xz") as archive:
                for path in sorted(data.rglob("*")):
                    if _is_kept(path):
                        archive.add(path, str(path.relative_to(data)), recursive=False)
        file = target / f"{mode}.json"
        file.write_text(json.dumps(expected, indent=1, sort_keys=True) + "\n")
    for path in sorted(target.iterdir()):
        print(f"{path.relative_to(HERE.parent.parent)}: {path.stat().st_size} bytes")


def _is_kept(path: Path) -> bool:
    """Not RocksDB's own diary, and no locks."""
    return path.name != "LOCK" and not path.name.startswith("LOG")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "1")
