"""Wheel and sdist: what they hold, what they add to an environment, and that they work there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = (
    "streamlog",
    "pyspark_streamlog",
    "kvstore",
    "server",
    "pyproject.toml",
    "setup.py",
    "README.md",
    "LICENSE",
)

NATIVE = [
    package
    for package in ("streamlog/codec", "streamlog/runtime")
    if package == "streamlog/codec" or sys.platform == "linux"
]
"""Packages with a compiled half."""
COMPILER = shutil.which((sysconfig.get_config_var("CC") or "cc").split()[0])

pytestmark = pytest.mark.xdist_group("packaging")


def _run(*command: str | Path, cwd: Path, **variables: str) -> str:
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "STREAMLOG_CODEC")
    }
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=environment | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder with wheel and sdist, and what the build said."""
    folder = tmp_path_factory.mktemp("build")
    source = folder / "source"
    source.mkdir()
    for name in SOURCES:
        path = ROOT / name
        if path.is_dir():
            shutil.copytree(
                path,
                source / name,
                symlinks=True,
                ignore=shutil.ignore_patterns("__pycache__", "*.so"),
            )
        else:
            shutil.copy(path, source / name)
    said = _run(
        sys.executable, "-m", "build", "--no-isolation", "--outdir", folder / "dist", cwd=source
    )
    return folder / "dist", said


@pytest.fixture(scope="module")
def site_packages(built: tuple[Path, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment in which nothing but the wheel is installed."""
    environment = tmp_path_factory.mktemp("environment")
    _run(sys.executable, "-m", "venv", "--without-pip", environment, cwd=environment)
    (wheel,) = built[0].glob("*.whl")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python")
    python = environment / "bin" / "python"
    _run(*pip, python, "install", "--no-deps", "--no-index", wheel, cwd=environment)
    (found,) = environment.glob("lib/python*/site-packages")
    return found


def test_the_build_says_no_warning(built: tuple[Path, str]) -> None:
    warnings = [line for line in built[1].splitlines() if "warning" in line.lower()]
    assert warnings == []


def test_wheel_adds_only_streamlog_sparks_finder_and_its_metadata(site_packages: Path) -> None:
    names = {path.name for path in site_packages.iterdir() if path.name != "__pycache__"}
    metadata = {name for name in names if name.endswith(".dist-info")}
    assert names - metadata == {"streamlog", "pyspark_streamlog"}
    assert len(metadata) == 1
    assert next(iter(metadata)).startswith("streamlog_engine-")


def test_wheel_holds_every_module_of_the_tree(built: tuple[Path, str]) -> None:
    (wheel,) = built[0].glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.startswith("streamlog/")}
    source = built[0].parent / "source"
    folders = {"streamlog": source / "streamlog"} | {
        f"streamlog/{name}": source / name for name in ("kvstore", "server")
    }
    there = {
        f"{prefix}/{path.relative_to(folder).as_posix()}"
        for prefix, folder in folders.items()
        for suffix in ("*.py", "*.pyi", "py.typed")
        for path in folder.rglob(suffix)
    }
    extension = {f"{package}/_native.abi3.so" for package in NATIVE} if COMPILER else set()
    assert packed == there | extension
    assert "-cp311-abi3-" in wheel.name


@pytest.mark.skipif(COMPILER is None, reason="there is no C compiler")
def test_installed_wheel_has_the_compiled_codec(site_packages: Path, tmp_path: Path) -> None:
    _check_codec(site_packages, "native", tmp_path)


def test_sdist_installs_without_a_compiler(built: tuple[Path, str], tmp_path: Path) -> None:
    (sdist,) = built[0].glob("*.tar.gz")
    target = tmp_path / "target"
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "install")
    options = ("--no-build-isolation", "--no-deps", "--no-index", "--target")
    _run(*pip, *options, target, sdist, cwd=tmp_path, CC="/bin/false")
    assert not list(target.rglob("*.so"))
    _check_codec(target, "pure", tmp_path)


def _check_codec(packages: Path, twin: str, folder: Path) -> None:
    """A round trip by the twin, and what asking for the compiled one says."""
    script = f"""
import sys
sys.path.insert(0, {str(packages)!r})
from streamlog.codec import choice, columns, records
from streamlog.errors import InvalidConfig
assert choice.__file__.startswith({str(packages)!r}), choice.__file__
assert choice.IN_USE == {twin!r}
batch = records.encode_values([b"a", None], timestamp_ms=5, keys=[None, b"k"]).data
assert records.decode(batch) == [(0, 5, None, b"a", []), (1, 5, b"k", None, [])]
assert next(columns.decode_columns(batch)).count == 2
try:
    choice.load("native")
except InvalidConfig as error:
    assert {twin!r} == "pure", error
    print("refused")
else:
    print("loaded")
"""
    said = _run(sys.executable, "-c", script, cwd=folder)
    assert said.strip() == ("loaded" if twin == "native" else "refused")


def test_sdist_holds_files_and_no_links(built: tuple[Path, str]) -> None:
    (sdist,) = built[0].glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        members = archive.getmembers()
    assert not [member.name for member in members if member.issym() or member.islnk()]
    inside = {member.name.partition("/")[2] for member in members}
    assert {"LICENSE", "README.md", "pyproject.toml", "streamlog/server/__init__.py"} <= inside
    sources = {
        path.relative_to(ROOT).as_posix()
        for package in NATIVE
        for path in (ROOT / package / "native").glob("*.[ch]")
    }
    assert sources | {"setup.py"} <= inside
    assert not [name for name in inside if name.endswith((".so", ".o"))]


def test_installed_wheel_imports_and_its_command_runs(site_packages: Path, tmp_path: Path) -> None:
    # The dependencies are this environment's; they come after the wheel on the path.
    (site_packages / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    binaries = site_packages.parents[2] / "bin"
    script = """
import importlib, importlib.util, streamlog
for name in "kvstore server client cli.main log engine v1.log_pb2_grpc".split():
    importlib.import_module(f"streamlog.{name}")
for name in ("kvstore", "server"):
    assert importlib.util.find_spec(name) is None, name
print(streamlog.__file__)
"""
    said = _run(binaries / "python", "-c", script, cwd=tmp_path)
    assert Path(said.strip()).is_relative_to(site_packages)
    assert "Commands:" in _run(binaries / "streamlog", "--help", cwd=tmp_path)
    assert _run(binaries / "streamlog", "--version", cwd=tmp_path).startswith("streamlog ")
