"""README's Kafka clients in three languages run as they stand, against a node."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kafka_clients.brokers import Broker
from tests.kafka_clients.client_programs import java
from tests.support.command import ROOT
from tests.support.go_clients import build_program

pytestmark = pytest.mark.xdist_group("kafka_clients")

FOLDER = ROOT / "examples" / "kafka"
FILES = {
    "python": FOLDER / "produce_consume.py",
    "java": FOLDER / "Example.java",
    "go": FOLDER / "go" / "main.go",
}
ADDRESS, TOPIC = "127.0.0.1:9092", "hellos"


@pytest.mark.parametrize("language", FILES)
def test_a_client_says_hello(node: Broker, tmp_path: Path, language: str) -> None:
    text = FILES[language].read_text().replace(ADDRESS, node.bootstrap)
    file = tmp_path / FILES[language].name
    file.write_text(text.replace(TOPIC, f"{TOPIC}-{language}"))
    ended = subprocess.run(
        _command(language, file), capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "0 hello\n"


def _command(language: str, file: Path) -> list[str]:
    if language == "python":
        return [sys.executable, str(file)]
    if language == "java":
        return java(str(file))
    program = file.with_name("program")
    build_program(file.read_bytes(), program)
    return [str(program)]


@pytest.mark.parametrize("language", FILES)
def test_readme_shows_the_file(language: str) -> None:
    text = (ROOT / "README.md").read_text()
    blocks = re.findall(rf"^```{language}\n(.*?)^```", text, re.M | re.S)
    assert FILES[language].read_text() in blocks
