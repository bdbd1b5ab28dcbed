"""Lines and branches of commit, recovery and deletion that no history reaches.

Module and source text name a branch, not its line number, so that the list of exceptions
(`tests/simulation/unreached.txt`) outlives edits elsewhere in a file.
"""

from __future__ import annotations

import importlib
import json
import logging
import multiprocessing
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import coverage

from streamlog.testing.simulation.many import run_one

MODULES = (
    "compaction.collect.collector",
    "compaction.compactor",
    "engine.cluster",
    "engine.append.group_commit",
    "engine.upload.object_put",
    "engine.replay.recovery",
    "engine.upload.uploader",
    "metadata.journal.checkpointer",
    "metadata.journal.committer",
    "metadata.fold.fold",
    "metadata.journal.follower",
    "metadata.compaction.garbage",
    "metadata.journal.id_allocator",
    "metadata.ownership.liveness",
    "metadata.checkpoint.loader",
    "metadata.ownership.transfer",
    "metadata.journal.object_ids",
    "metadata.fold.plan",
    "metadata.journal.record_sender",
    "metadata.ownership.registration",
    "wal.folder",
    "wal.log",
    "wal.pool",
    "wal.recovery",
    "wal.replay",
    "wal.scan",
    "wal.writer",
)
KNOWN = Path("tests/simulation/unreached.txt")
SEEDS_PER_TASK = 10


class Unreached(NamedTuple):
    """A branch: the text of a line, and of the line that never followed it ("" at an end)."""

    module: str
    line: int
    text: str
    to: str

    @property
    def key(self) -> str:
        return f"{self.module} | {self.text} | {self.to}"


def measure(
    seeds: Sequence[int], jobs: int, known: Path = KNOWN, *, also: Path | None = None
) -> int:
    """Prints unreached branches, and listed ones that were reached. Returns 1 when an unreached one
    is not in the list `known`.

    `also`: branch coverage data of other tests, which counts as well.
    """
    files = {name: _file_of(name) for name in MODULES}
    with tempfile.TemporaryDirectory() as folder:
        data_file = f"{folder}/coverage"
        tasks = [
            (list(seeds[start : start + SEEDS_PER_TASK]), data_file, list(files.values()))
            for start in range(0, len(seeds), SEEDS_PER_TASK)
        ]
        context = multiprocessing.get_context("spawn")
        failed: list[int] = []
        # Each process imports the engine anew, so that code that runs at import counts.
        with context.Pool(jobs, logging.disable, (logging.CRITICAL,), maxtasksperchild=1) as pool:
            for part in pool.imap_unordered(_run, tasks, chunksize=1):
                failed += part
        combined = coverage.Coverage(data_file=data_file, branch=True, config_file=False)
        combined.combine([folder, *(() if also is None else (str(also),))], keep=True)
        report = Path(folder) / "report.json"
        combined.json_report(outfile=str(report))
        unreached = _unreached(json.loads(report.read_text()), files)
        total = json.loads(report.read_text())["totals"]
    reasons = read_reasons(known)
    new = [branch for branch in unreached if branch.key not in reasons]
    for branch in unreached:
        reason = reasons.get(branch.key, "NOT IN THE LIST")
        print(f"{branch.module}:{branch.line}: {branch.text} → {branch.to or 'end'}: {reason}")
    for key in sorted(reasons.keys() - {branch.key for branch in unreached}):
        print(f"reached, though it is in the list: {key}")
    print(
        f"{len(seeds)} seeds: {total['covered_lines']} of {total['num_statements']} lines, "
        f"{total['covered_branches']} of {total['num_branches']} branches; "
        f"{len(unreached)} unreached, {len(new)} of them not in the list"
    )
    if failed:
        print(f"failed: {failed}")
    return 1 if new or failed else 0


def read_reasons(known: Path) -> dict[str, str]:
    """Reasons by key. Lines of the file: `module | text | text that never follows | reason`."""
    reasons = {}
    for line in known.read_text().splitlines() if known.exists() else ():
        if line and not line.startswith("#"):
            key, _, reason = line.rpartition(" | ")
            reasons[key] = reason
    return reasons


def _file_of(name: str) -> str:
    module = importlib.import_module(f"streamlog.{name}")
    assert module.__file__ is not None
    return module.__file__


def _run(task: tuple[list[int], str, list[str]]) -> list[int]:
    seeds, data_file, files = task
    measured = coverage.Coverage(
        data_file=data_file, data_suffix=True, branch=True, include=files, config_file=False
    )
    measured.start()
    failed = [seed for seed in seeds if run_one((seed, None, False)).report is None]
    measured.stop()
    measured.save()
    return failed


def _unreached(report: dict[str, Any], files: dict[str, str]) -> list[Unreached]:
    """Reads a report as `coverage json` writes it."""
    names = {Path(file).resolve(): name for name, file in files.items()}
    unreached = []
    for file, covered in report["files"].items():
        path = Path(file).resolve()
        if path not in names:
            continue
        source = path.read_text().splitlines()
        for line, to in covered["missing_branches"]:
            if line in covered["executed_lines"]:
                text = source[to - 1].strip() if to > 0 else ""
                unreached.append(Unreached(names[path], line, source[line - 1].strip(), text))
        for name, function in covered["functions"].items():
            lines = function["missing_lines"]
            # A module's own lines ran before the measurement began.
            if name and lines and not function["executed_lines"]:
                text = source[lines[0] - 1].strip()
                unreached.append(Unreached(names[path], lines[0], "never called", text))
    return sorted(set(unreached))
