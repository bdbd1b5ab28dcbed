"""Generates streamlog/v1 from proto/; `--check` only says whether it is up to date (exit 1: no).

    python proto/generate.py [--check]

Needs grpcio-tools (the extra `lint`). The versions in pyproject.toml are what the
generated code asks for at import.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from importlib import resources
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
PROTO = ROOT / "proto"
PACKAGE = Path("streamlog/v1")


def generate(into: Path) -> list[Path]:
    """Writes the generated modules under `into`; their paths relative to it, sorted."""
    sources = sorted(str(path) for path in (PROTO / PACKAGE).glob("*.proto"))
    well_known = resources.files("grpc_tools") / "_proto"
    arguments = [
        "protoc",
        f"--proto_path={PROTO}",
        f"--proto_path={well_known}",
        f"--python_out={into}",
        f"--pyi_out={into}",
        f"--grpc_python_out={into}",
        *sources,
    ]
    if protoc.main(arguments) != 0:
        raise SystemExit("protoc failed; see above")
    return sorted(path.relative_to(into) for path in into.rglob("*.py*"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    with tempfile.TemporaryDirectory() as folder:
        made = generate(Path(folder))
        there = {
            path.relative_to(ROOT)
            for path in (ROOT / PACKAGE).glob("*.py*")
            if path.name != "__init__.py"
        }
        stale = sorted(
            {
                path
                for path in made
                if not (ROOT / path).exists()
                or (ROOT / path).read_bytes() != (Path(folder) / path).read_bytes()
            }
            | (there - set(made))
        )
        if check:
            for path in stale:
                print(f"{path} is not what proto/ generates; run: make proto")
            return 1 if stale else 0
        for path in there - set(made):
            (ROOT / path).unlink()
        for path in made:
            shutil.copyfile(Path(folder) / path, ROOT / path)
        print(f"{len(made)} files in {PACKAGE}, {len(stale)} of them changed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
