"""Generates Kafka's messages and records from the definitions in Kafka's jars.

    python proto/kafka/generate.py [--jar JAR --transactions-jar JAR --storage-jar JAR]
    python proto/kafka/generate.py --check [--jar JAR --transactions-jar JAR --storage-jar JAR]

Messages come from `kafka-clients`, records of the transaction coordinator from
`kafka-transaction-coordinator`, those of remote segments from `kafka-storage`. Writes
streamlog/kafka/messages, streamlog/kafka/records, tests/kafka/shapes.json and manifest.json. Jars
are fetched with Maven unless the options name them; nothing of them is committed. `--check` says
whether the generated files are current (exit 1: no).
Without jars it compares digests: of the generator with the versions that it serves, and of each
generated file, with what `manifest.json` has from the last run. With jars it generates anew and
compares.
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
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(HERE), str(ROOT)]

from definitions import (  # noqa: E402
    Message,
    Versions,
    load,
    load_records,
    load_remote_log_records,
    restricted,
    snake,
)
from module import module  # noqa: E402
from shapes import shape, shapes_text  # noqa: E402

from streamlog.kafka.protocol.apis import APIS, Api  # noqa: E402

KAFKA = "4.1.1"
JARS = ("kafka-clients", "kafka-transaction-coordinator", "kafka-storage")
PACKAGE = Path("streamlog/kafka/messages")
RECORDS_PACKAGE = Path("streamlog/kafka/records")
RECORDS = {"TransactionLogKey": Versions(0, 0), "TransactionLogValue": Versions(0, 1)}
REMOTE_LOG_RECORDS = {
    "RemoteLogSegmentMetadataRecord": Versions(0, 0),
    "RemoteLogSegmentMetadataUpdateRecord": Versions(0, 0),
    "RemotePartitionDeleteMetadataRecord": Versions(0, 0),
}
OWN_FIELDS = {
    "TransactionLogValue": [
        {"name": "LastProducerEpoch", "type": "int16", "versions": "1+", "taggedVersions": "1+",
         "tag": 10_000, "default": -1},
        {"name": "ApplicationEpoch", "type": "int64", "versions": "1+", "taggedVersions": "1+",
         "tag": 10_001, "default": -1},
    ],
}  # fmt: skip
"""Tagged fields that Kafka does not have, and whose readers skip them: what a coordinator of Kafka
forgets when it moves, and what an application says of a transaction (`EndTransactionRequest`)."""
SHAPES = Path("tests/kafka/shapes.json")
"""What tests need to make random messages: types, versions, nulls and tags of all fields."""
MANIFEST = HERE / "manifest.json"
SOURCES = (
    "definitions.py", "decoder.py", "encoder.py", "source.py", "module.py", "shapes.py",
)  # fmt: skip


class Jars(NamedTuple):
    clients: Path
    transactions: Path
    storage: Path


def generate(jars: Jars) -> dict[Path, str]:
    """Text of every generated file, by its path from the root."""
    messages = load(jars.clients)
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
    files |= _records(load_records(jars.transactions, OWN_FIELDS), RECORDS)
    return files | _records(load_remote_log_records(jars.storage), REMOTE_LOG_RECORDS)


def _records(records: Mapping[str, Message], versions: Mapping[str, Versions]) -> dict[Path, str]:
    return {
        RECORDS_PACKAGE / f"{snake(name)}.py": module(records[name], served, KAFKA)
        for name, served in versions.items()
    }


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
    both = RECORDS | REMOTE_LOG_RECORDS
    records = [(name, *vars(versions).values()) for name, versions in both.items()]
    return _digest(json.dumps([KAFKA, served, records, OWN_FIELDS, sources]).encode())


def _manifest(files: Mapping[Path, str]) -> str:
    digests = {str(path): _digest(text.encode()) for path, text in sorted(files.items())}
    content = {"kafka": KAFKA, "generator": _generator_digest(), "files": digests}
    return json.dumps(content, indent=1) + "\n"


def _committed() -> dict[Path, str]:
    modules = [*(ROOT / PACKAGE).glob("*.py"), *(ROOT / RECORDS_PACKAGE).glob("*.py")]
    paths = [path for path in modules if path.name != "__init__.py"]
    paths += [ROOT / SHAPES] if (ROOT / SHAPES).exists() else []
    return {path.relative_to(ROOT): path.read_text() for path in paths}


def check(jars: Jars | None) -> int:
    committed = _committed()
    stale: list[object] = []
    if jars is not None:
        made = generate(jars)
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


def write(jars: Jars) -> None:
    made, committed = generate(jars), _committed()
    for path in committed.keys() - made.keys():
        (ROOT / path).unlink()
    for path, text in made.items():
        (ROOT / path).write_text(text)
    MANIFEST.write_text(_manifest(made))
    changed = sum(committed.get(path) != text for path, text in made.items())
    print(f"{len(made)} files of Kafka's messages, {changed} of them changed")


def fetched_jar(folder: Path, name: str) -> Path:
    """Downloads one of Kafka's jars with Maven."""
    if shutil.which("mvn") is None:
        raise SystemExit("mvn is not on the PATH: install Maven, or name the jars by options")
    artifact = f"org.apache.kafka:{name}:{KAFKA}"
    done = subprocess.run(
        ["mvn", "-q", "-B", "dependency:copy", f"-Dartifact={artifact}",
         f"-DoutputDirectory={folder}"],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise SystemExit(f"Maven could not fetch {artifact}: {done.stdout[:600]}")
    return folder / f"{name}-{KAFKA}.jar"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--jar", type=Path, help="kafka-clients")
    parser.add_argument("--transactions-jar", type=Path, help="kafka-transaction-coordinator")
    parser.add_argument("--storage-jar", type=Path, help="kafka-storage")
    arguments = parser.parse_args()
    named = (arguments.jar, arguments.transactions_jar, arguments.storage_jar)
    if any(named) and not all(named):
        raise SystemExit("name all three jars, or none")
    jars = Jars(*named) if all(named) else None
    if arguments.check:
        return check(jars)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        write(jars or Jars(*(fetched_jar(place, name) for name in JARS)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
