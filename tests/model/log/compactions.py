"""A compactor: reads the fold and `x`, stores one output, commits it; plans again when refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tests.model.explorer import Label, sent
from tests.model.log.state import Batch, State

if TYPE_CHECKING:
    from tests.model.log.model import LogModel


def steps(model: LogModel, state: State, tenure: int) -> Iterator[tuple[Label, State]]:
    node, fold = state.nodes[tenure], model.log.fold(state.log)
    live = sorted(fold.live)
    if not state.budget.compact or node.pending or not live:
        return
    for inputs in {tuple(live), tuple(live[:1])}:
        runs: list[list[int]] = []
        for stream, rows in enumerate(fold.ranges):
            run: list[int] | None = None
            for a, b, obj in rows:
                if obj not in inputs:
                    continue
                if run and run[2] == a:
                    run[2] = b
                else:
                    run = [stream, a, b]
                    runs.append(run)
        obj = 10 * tenure + node.objects
        content = tuple((s, 0, a, fold.truth[s][a:b]) for s, a, b in runs)
        batch = Batch(obj, content, False, inputs, state.x)
        yield (
            ("compacts", tenure, inputs, obj),
            state.with_node(tenure, objects=node.objects + 1, pending=(batch,))
            ._replace(net=sent(state.net, ("PUT", tenure, obj, content)))
            .spend("compact"),
        )
