"""The checker of finished copies accepts a right copy and finds each wrong one."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from streamlog.codec.batch import BatchProducer
from streamlog.codec.records import BatchBuilder
from streamlog.format.kafka_files.producer_snapshot import SnapshotEntry, encode_snapshot
from streamlog.testing.simulation.checker import Violation
from streamlog.testing.simulation.local.copy_checker import check_copy
from streamlog.testing.simulation.numbered.clients import NUMBER

AT = {7: 70, 8: 80, 9: 90}
PRODUCER = SnapshotEntry(5, 0, 2, 9, 1, 1000, -1, -1)


def batch(base_offset: int, numbers: Sequence[int], sequence: int) -> bytes:
    builder = BatchBuilder(1 << 20)
    for number in numbers:
        builder.append(1000, b"k", b"v", [(NUMBER, b"%d" % number)])
    data = bytearray(builder.build(BatchProducer(5, 0, sequence)))
    data[:8] = base_offset.to_bytes(8, "big")
    return bytes(data)


LOG = batch(7, [70], 0) + batch(8, [80, 90], 1)


def check(
    log: bytes = LOG,
    producers: Sequence[SnapshotEntry] = (PRODUCER,),
    offsets: range = range(7, 10),
    at: dict[int, int] | None = None,
) -> None:
    check_copy("copy", log, encode_snapshot(producers), offsets, AT if at is None else at)


def test_a_right_copy_passes() -> None:
    check()
    check(producers=())
    check(at={})


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"log": LOG[:-1]}, "is damaged"),
        ({"log": batch(8, [80, 90], 1)}, "8 follows 7"),
        ({"log": batch(7, [70], 0)}, "ends at 8"),
        ({"offsets": range(7, 11)}, "ends at 10"),
        ({"at": {8: 81}}, "has record 80 at 8, and 81 is there"),
        ({"producers": [PRODUCER._replace(producer_id=6)]}, "lacks producer 5"),
        ({"producers": [PRODUCER._replace(last_offset=7)]}, "its producer snapshot has"),
        ({"producers": [PRODUCER._replace(producer_epoch=1)]}, "its producer snapshot has"),
        ({"producers": [PRODUCER._replace(last_offset=12)]}, "has offsets from 10 on"),
        ({"producers": [PRODUCER._replace(txn_first_offset=8)]}, "its producer snapshot has"),
    ],
)
def test_a_wrong_copy_is_found(wrong: dict[str, object], says: str) -> None:
    with pytest.raises(Violation, match=says):
        check(**wrong)  # type: ignore[arg-type]
