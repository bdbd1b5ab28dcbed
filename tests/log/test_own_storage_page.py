"""The example in docs/own-storage.md runs as it is printed."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "own-storage.md"


def test_the_example_runs(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    (example,) = [textwrap.dedent(block) for block in blocks if "asyncio.run" in block]
    command = [sys.executable, "-W", "error", "-c", example]
    environment = {"PYTHONPATH": str(PAGE.parents[1])}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True)
    assert done.stdout.decode().strip() == "[b'hello', b'world']", done.stderr.decode()
    files = [path for path in (tmp_path / "data").iterdir() if path.suffix == ".stream"]
    assert len(files) == 4
