"""Generates Kafka's messages and their shapes from the definitions in the `kafka-clients` jar.

    python proto/kafka/generate.py [--jar JAR]
    python proto/kafka/generate.py --check [--jar JAR]

Writes streamlog/kafka/messages, tests/kafka/shapes.json and manifest.json. The jar is fetched with
Maven unless `--jar` names one; nothing of it is committed. `--check` says whether the generated
files are current (exit 1: no). Without a jar it compares digests: of the generator with the
versions that it serves, and of each generated file, with what `manifest.json` has from the last
run. With a jar it generates anew and compares.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(HERE), str(ROOT)]

from definitions import Message, Versions, load, restricted, snake  # noqa: E402
from module import module  # noqa: E402
from shapes import shape, shapes_text  # noqa: E402

from streamlog.kafka.protocol.apis import APIS, Api  # noqa: E402

KAFKA = "4.1.1"
PACKAGE = Path("streamlog/kafka/messages")
SHAPES = Path("tests/kafka/shapes.json")
"""What tests need to make random messages: types, versions, nulls and tags of all fields."""
MANIFEST = HERE / "manifest.json"
SOURCES = (
    "definitions.py", "decoder.py", "encoder.py", "source.py", "module.py", "shapes.py",
)  # fmt: skip


def generate(jar: Path) -> dict[Path, str]:
    """Text of every generated file, by its path from the root."""
    messages = load(jar)
    files, shapes = {}, []
    for api in APIS.values():
        for kind in ("Request", "Response"):
            message = messages[f"{api.name}{kind}"]
            _check_api(api, message)
            served = Versions(api.first, api.last)
            message = restricted(message, served)
            files[PACKAGE / f"{snake(message.name)}.py"] = module(message, served, KAFKA)
            shapes.append(shape(message, served))
    files[SHAPES] = shapes_text(shapes)
    return files


def _check_api(api: Api, message: Message) -> None:
    """The table of APIs says what Kafka's definitions say."""
    stable = message.valid.last - message.is_last_unstable
    if not (
        message.key == api.key
        and message.valid.first <= api.first
        and api.last <= stable
        and message.flexible.first == api.flexible
    ):
        raise SystemExit(f"{message.name}: definitions have key {message.key}, {message.valid}, "
                         f"flexible from {message.flexible.first}; apis.py has {api}")  # fmt: skip


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _generator_digest() -> str:
    served = [(api.name, api.key, api.first, api.last) for api in APIS.values()]
    sources = [(HERE / name).read_text() for name in SOURCES]
    return _digest(json.dumps([KAFKA, served, sources]).encode())


def _manifest(files: Mapping[Path, str]) -> str:
    digests = {str(path): _digest(text.encode()) for path, text in sorted(files.items())}
    content = {"kafka": KAFKA, "generator": _generator_digest(), "files": digests}
    return json.dumps(content, indent=1) + "\n"


def _committed() -> dict[Path, str]:
    paths = [path for path in (ROOT / PACKAGE).glob("*.py") if path.name != "__init__.py"]
    paths += [ROOT / SHAPES] if (ROOT / SHAPES).exists() else []
    return {path.relative_to(ROOT): path.read_text() for path in paths}


def check(jar: Path | None) -> int:
    committed = _committed()
    stale: list[object] = []
    if jar is not None:
        made = generate(jar)
        stale += [path for path in made.keys() | committed if made.get(path) != committed.get(path)]
    else:
        known, now = json.loads(MANIFEST.read_text()), json.loads(_manifest(committed))
        before, after = known["files"], now["files"]
        stale += [path for path in before.keys() | after if before.get(path) != after.get(path)]
        if known["generator"] != now["generator"]:
            stale.append("the generator, or the versions in its table of APIs")
    for one in sorted(map(str, stale)):
        print(f"{one}: not what was generated last; run: make kafka-messages")
    return 1 if stale else 0


def write(jar: Path) -> None:
    made, committed = generate(jar), _committed()
    for path in committed.keys() - made.keys():
        (ROOT / path).unlink()
    for path, text in made.items():
        (ROOT / path).write_text(text)
    MANIFEST.write_text(_manifest(made))
    changed = sum(committed.get(path) != text for path, text in made.items())
    print(f"{len(made)} files of Kafka's messages, {changed} of them changed")


def fetched_jar(folder: Path) -> Path:
    """Downloads `kafka-clients` with Maven."""
    if shutil.which("mvn") is None:
        raise SystemExit("mvn is not on the PATH: install Maven, or name the jar with --jar")
    artifact = f"org.apache.kafka:kafka-clients:{KAFKA}"
    done = subprocess.run(
        ["mvn", "-q", "-B", "dependency:copy", f"-Dartifact={artifact}",
         f"-DoutputDirectory={folder}"],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise SystemExit(f"Maven could not fetch {artifact}: {done.stdout[:600]}")
    return folder / f"kafka-clients-{KAFKA}.jar"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--jar", type=Path)
    arguments = parser.parse_args()
    if arguments.check:
        return check(arguments.jar)
    with tempfile.TemporaryDirectory() as folder:
        write(arguments.jar or fetched_jar(Path(folder)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
