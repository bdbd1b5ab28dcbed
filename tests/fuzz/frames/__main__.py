"""`make fuzz-kafka FRAMES=N`: damaged requests for a node; exit code 1 where any did harm.

Each job is a node in a process of its own, with a seed of its own. SIGINT and SIGTERM end the run
at its next rest; the summary then says how far it came.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import partial
from multiprocessing import get_context
from typing import Any

from tests.fuzz.frames.job import job
from tests.fuzz.frames.run import Summary

RSS_GROWTH_MIB_MAX = 48


def is_fine(summary: Mapping[str, Any]) -> bool:
    return not summary["findings"] and summary["rss_growth_mib"] <= RSS_GROWTH_MIB_MAX


def told(summary: Summary) -> dict[str, Any]:
    return {**asdict(summary), "rss_growth_mib": summary.rss_growth_mib}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=200_000, help="of all jobs together")
    parser.add_argument("--seed", type=int, default=0, help="of the first job")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", help="a file for the summaries, beside what is printed")
    arguments = parser.parse_args()
    seeds = range(arguments.seed, arguments.seed + arguments.jobs)
    # The parent lets its children come to rest.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    with ProcessPoolExecutor(arguments.jobs, mp_context=get_context("spawn")) as pool:
        run = partial(job, -(-arguments.frames // arguments.jobs))
        summaries = [told(summary) for summary in pool.map(run, seeds)]
    text = json.dumps(summaries, indent=1)
    print(text)
    if arguments.out:
        with open(arguments.out, "w") as file:
            file.write(text)
    frames, answered = (sum(one[name] for one in summaries) for name in ("frames", "answered"))
    findings = sum(len(one["findings"]) for one in summaries)
    growth = [one["rss_growth_mib"] for one in summaries]
    print(f"{frames:,} requests, {answered:,} answers, {findings} findings, memory {growth} MiB")
    return int(not all(map(is_fine, summaries)))


if __name__ == "__main__":
    sys.exit(main())
