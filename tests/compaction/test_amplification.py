"""The targets: what compaction writes, how many objects there are, what a reader then asks for.

Many streams run at a part of the scale: sizes of objects and the number of streams shrink
together, so that parts, decisions and ratios stay what they are.
"""

from __future__ import annotations

import dataclasses

import pytest

from streamlog.compaction.plan.config import MIB, CompactionConfig
from streamlog.compaction.plan.spec import OUTPUT_ROWS_MAX, OUTPUTS_MAX
from tests.compaction.model import FoldModel

GIB = 1 << 30
SCALED = ("small_object_bytes", "stream_object_bytes_min", "object_bytes_max", "spec_bytes_max")


def run(streams: int, gib: int, scale: int) -> FoldModel:
    default = CompactionConfig()
    config = dataclasses.replace(
        default, **{name: getattr(default, name) // scale for name in SCALED}
    )
    model = FoldModel(streams // scale, config)
    while model.appended < gib * GIB // scale:
        for _ in range(4):
            model.append(8 * MIB // scale)
        model.compact()
    return model


@pytest.mark.parametrize(
    ("streams", "gib", "scale", "amplification", "gets_per_gib"),
    [
        (1, 16, 1, 2.0, 80),
        (16, 8, 1, 2.0, 80),
        (30, 8, 1, 2.0, 80),
        (100, 16, 10, 2.0, 2 * 100 + 80),
        (10_000, 16, 160, 3.5, 2 * 10_000 + 80),
    ],
)
def test_targets(
    streams: int, gib: int, scale: int, amplification: float, gets_per_gib: int
) -> None:
    model = run(streams, gib, scale)
    assert model.amplification <= amplification
    assert max(model.most_in_a_tier, model.most_fully_compacted) < 64
    model.compact_all()
    assert model.amplification <= amplification + 0.01
    assert model.gets / gib <= gets_per_gib / scale
    assert all(spec.rows <= OUTPUT_ROWS_MAX for spec in model.specs)
    assert all(len(spec.outputs) <= OUTPUTS_MAX for spec in model.specs)
    assert len(model.specs) >= 10


def test_much_more_data_is_not_rewritten_again() -> None:
    """At 100 streams each byte is rewritten once, however much there is. Fully compacted objects
    pile up, one for each 448 MiB, and their parts are large enough for readers.
    """
    model = run(100, 48, 10)
    assert model.amplification <= 2.0
    assert model.most_in_a_tier < 64


@pytest.mark.parametrize(("streams", "gets"), [(100, 2 * 100 + 80), (16, 80)])
def test_a_backlog_is_merged_at_once(streams: int, gets: int) -> None:
    """A GiB of uploads in one merge: a stream's parts are as large as can be."""
    model = FoldModel(streams, CompactionConfig())
    for _ in range(128):
        model.append(8 * MIB)
    model.compact_all()
    assert len(model.specs) == 1
    assert model.amplification <= 2.01
    assert model.not_fully_compacted == 0
    assert model.gets <= gets
