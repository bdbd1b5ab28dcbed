"""Kafka's client with version 2 of transactions (KIP-890), against a broker that finalized it.

It adds no partitions itself: Produce 12 and newer has them added. EndTxn 5 answers with the
producer's next epoch.
"""

from __future__ import annotations

import asyncio
import subprocess

from streamlog.kafka.protocol.apis import ApiKey
from streamlog.kafka.protocol.errors import KafkaError
from tests.kafka_clients.client_programs import ROOT, environment
from tests.kafka_clients.runs import CLIENTS, TIMEOUT_S, Outcome, outcomes
from tests.kafka_clients.tap import Tap

CASES = ("transactions", "fencing", "transaction_timeout")
PRODUCE_ADDS, END_BUMPS = 12, 5


async def check_java(tap: Tap) -> None:
    """The cases pass, by requests that version 2 alone has."""
    with tap.recording() as seen:
        cases, errors = await _run_java(tap.address)
    assert tap.failures == []
    assert {case: outcome.error for case, outcome in cases.items()} == dict.fromkeys(CASES), errors
    refused = KafkaError.INVALID_TXN_STATE
    ends = {(one.version, one.error) for one in seen if one.api == ApiKey.END_TXN}
    assert ends == {(END_BUMPS, 0), (END_BUMPS, refused)}
    produced = {one.version for one in seen if one.api == ApiKey.PRODUCE}
    assert min(produced) >= PRODUCE_ADDS
    assert ApiKey.ADD_PARTITIONS_TO_TXN not in {one.api for one in seen}


async def _run_java(server: str) -> tuple[dict[str, Outcome], str]:
    """The outcomes of the cases, and what the program wrote besides."""
    process = await asyncio.create_subprocess_exec(
        *(*CLIENTS["java"](), server, "newest", *CASES),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        env=environment(),
    )
    try:
        out, errors = await asyncio.wait_for(process.communicate(), TIMEOUT_S)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return outcomes(out.decode()), errors.decode()[-2000:]
