"""README's examples and those in `examples/` run as they stand, against a real node."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command import ROOT, environment
from tests.support.node import NodeProcess

DEFAULT_SERVER = "127.0.0.1:9644"
EXAMPLES = ROOT / "examples"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with NodeProcess(tmp_path_factory.mktemp("examples") / "data") as node:
        yield node.server


def blocks(language: str) -> list[str]:
    """README's code blocks in that language."""
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)


def run(command: list[str], folder: Path, server: str) -> str:
    folders = (str(Path(sys.executable).parent), os.environ["PATH"])
    ended = subprocess.run(
        command,
        cwd=folder,
        env=environment(STREAMLOG_SERVER=server, PATH=os.pathsep.join(folders)),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def run_python(text: str, folder: Path, server: str) -> str:
    file = folder / "example.py"
    file.write_text(
        text.replace(DEFAULT_SERVER, server).replace("/tmp/streamlog-example", f"{folder}/data")
    )
    return run([sys.executable, "-W", "error", str(file)], folder, server)


def test_readme_has_an_example_of_each_way() -> None:
    service, library, _kafka = blocks("python")
    assert DEFAULT_SERVER in service
    assert "streamlog.open" in library
    assert any("streamlog dev" in block for block in blocks("sh"))


def test_the_service_example(tmp_path: Path, server: str) -> None:
    assert run_python(blocks("python")[0], tmp_path, server) == "0\n0 b'hello'\n"


def test_the_library_example(tmp_path: Path, server: str) -> None:
    assert run_python(blocks("python")[1], tmp_path, server) == "0 b'hello'\n"
    assert run_python(blocks("python")[1], tmp_path, server) == "0 b'hello'\n"


def test_the_transaction_of_the_client_s_page(tmp_path: Path, server: str) -> None:
    text = (ROOT / "docs" / "client.md").read_text()
    (block,) = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    assert block.strip() in (EXAMPLES / "transactional_transfer.py").read_text()
    expected = ["nothing of it is visible: alice has less than 1000"]
    expected += ["credits: b'bob 5'", "debits: b'alice 5'"]
    told = run_python(block, tmp_path, server).splitlines()
    assert [told[0], *sorted(told[1:])] == expected


def test_the_command_line_example(tmp_path: Path, server: str) -> None:
    (block,) = (block for block in blocks("sh") if "streamlog produce" in block)
    lines = [line for line in block.splitlines() if "streamlog dev" not in line]
    text = "\n".join(lines).replace(".venv/bin/", "").replace("greetings", "from-readme")
    assert run(["sh", "-eu", "-c", text], tmp_path, server) == "hello\n"


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.*")))
def test_an_example_file_runs(name: str, tmp_path: Path, server: str) -> None:
    path = EXAMPLES / name
    if path.suffix == ".py":
        assert run_python(path.read_text(), tmp_path, server)
    else:
        assert "hello\n" in run(["sh", str(path)], tmp_path, server)


def test_readme_examples_stand_in_the_folder() -> None:
    files = {path.name: path.read_text() for path in EXAMPLES.glob("**/*.py")}
    for block in blocks("python"):
        body = textwrap.dedent(block).strip()
        assert any(body in text for text in files.values()), body.splitlines()[0]
