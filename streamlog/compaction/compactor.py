"""The compactor of a node: looks, plans, has specs carried out, commits them. One at a time.

1. Fresh objects go first, also between the specs of a long merge: they are the ones that pile up.
2. A merge too large for one spec is done stream by stream; each spec is planned anew from what
   lives then, so that trims, takeovers and restarts in between need no care.
3. What fails is looked at again at the next tick. A damaged or missing input is left alone for a
   time, with an error in the log: fsck finds out what it cost.
4. A job that did not come to its commit leaves orphans, which the node sweeps.
5. An executor elsewhere may carry jobs out for a time (`remote`); plans and commits stay here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from streamlog.compaction.execute.executor import Executor
from streamlog.compaction.metrics import CompactionMetrics
from streamlog.compaction.plan.catalog import Catalog
from streamlog.compaction.plan.config import CompactionConfig
from streamlog.compaction.plan.planner import (
    ALL,
    DEAD,
    Candidate,
    Choice,
    MergePlan,
    PlannedInput,
    Tier,
    choose,
    choose_all,
    end_stream,
    tier_of,
)
from streamlog.compaction.plan.planning import MergePlanRequest
from streamlog.compaction.plan.spec import (
    INPUTS_MAX,
    OUTPUTS_MAX,
    CompactionSpec,
    Job,
    MergeOutcome,
)
from streamlog.compaction.plan.stats import ObjectStats
from streamlog.compaction.quarantine import Quarantine
from streamlog.compaction.workers.remote import RemoteExecutor, RemoteLost, SwitchedExecutor
from streamlog.errors import (
    Closed,
    Conflict,
    Corrupt,
    DiskFull,
    Internal,
    MetadataUnavailable,
    ObjectNotFound,
    OutcomeUnknown,
    StoreUnavailable,
    StreamlogError,
    TenureFenced,
    Unavailable,
)
from streamlog.metadata.compaction_interface import (
    CompactionMetadata,
    CompactionTenure,
    Replacement,
)
from streamlog.metadata.interface import ObjectRow
from streamlog.objectstore.interface import ObjectStore
from streamlog.objectstore.keys import DATA_PREFIX
from streamlog.objectstore.keys import object_id as id_of_key
from streamlog.runtime.clock import Clock
from streamlog.runtime.concurrency.background import Background
from streamlog.runtime.offload import Lane, Offload
from streamlog.runtime.progress import Due

log = logging.getLogger(__name__)

PRESSURE_INTERVAL_S = 0.5
FUTILE_MAX = 256
FUTILE_S = 3600.0
COMMIT_TRIES = 30
COMMIT_RETRY_S = 1.0
REPLACED_S = 120.0
"""What was replaced shows as live until the next checkpoint, or for a time that outlasts it."""
DISK_FULL_S = 120.0
"""Between two tries: each of them reads much, and takes the last room from others."""
SLOWEST_BYTES_PER_S = 1 << 20
"""A step that is slower than this has come to a standstill."""
MISSED_MAX = 3
"""Times that a live object may be missing before it is given up."""


@dataclass(frozen=True, slots=True)
class Totals:
    """What was committed: specs, their inputs, their outputs."""

    specs: int = 0
    inputs: int = 0
    outputs: int = 0

    def since(self, before: Totals) -> Totals:
        return Totals(
            self.specs - before.specs,
            self.inputs - before.inputs,
            self.outputs - before.outputs,
        )


Chooser = Callable[[list[Candidate], CompactionConfig, Collection[frozenset[int]]], Choice | None]


@dataclass(slots=True)
class _Merge:
    """Inputs that one or more specs put together; done below `next_stream`."""

    tier: Tier
    inputs: list[ObjectRow]
    next_stream: int = 0
    replaced: set[int] = field(default_factory=set)

    @property
    def ids(self) -> frozenset[int]:
        return frozenset(row.object_id for row in self.inputs)


class Compactor:
    """`tick` compacts until nothing is due. Made inside a running loop."""

    def __init__(
        self,
        metadata: CompactionMetadata,
        store: ObjectStore,
        executor: Executor,
        offload: Offload,
        clock: Clock,
        config: CompactionConfig,
        metrics: CompactionMetrics,
        pressure: Callable[[], float] = lambda: 0.0,
        catalog: Catalog | None = None,
    ) -> None:
        """`pressure`: the share of the append budget in use, 0 to 1."""
        self._metadata = metadata
        self._executor = SwitchedExecutor(executor)
        self._store = store
        self._offload = offload
        self._clock = clock
        self._config = config
        self._metrics = metrics
        self._pressure = pressure
        self._catalog = catalog or Catalog(metadata, store, offload, config)
        self._background = Background("compactor", self._fail)
        self._tenure: CompactionTenure | None = None
        self._merges: list[_Merge] = []
        self._futile: dict[frozenset[int], float] = {}
        """Sets of objects that gained nothing, by the time until which they are left alone."""
        self._forgotten = 0
        """Such sets that had to give way to others before their time."""
        self._quarantine = Quarantine(clock)
        self._replaced: dict[int, float] = {}
        """Inputs by the time until which they are not looked at."""
        self._missed: dict[int, int] = {}
        self._resume_at = 0.0
        self._labels: set[tuple[str, str]] = set()
        self._totals = Totals()
        metrics.lent.set_function(lambda: float(self._executor.is_lent))
        self._turn = asyncio.Lock()
        self._done = 0
        """Steps and ticks that ended well."""
        self._failure = ""
        self._failures = 0
        """Ticks in a row that failed, the last one with `_failure`."""
        self._spec_bytes = 0
        """Of the spec that is being carried out."""
        self._waiting = 0
        self._calls: set[asyncio.Future[None]] = set()
        """Of `compact_all`, under way."""
        """For the turn; `tick` gives it up between two specs."""

    @property
    def backlog(self) -> Mapping[Tier, int]:
        """Objects that are not settled, at the last look."""
        return self._catalog.backlog

    def start(self) -> None:
        """Goes on by itself until `close`."""
        self._background.every(
            lambda: self._config.compaction_interval_ms / 1000, self.tick, name="compact"
        )
        self._background.every(lambda: PRESSURE_INTERVAL_S, self._watch, name="pressure")

    def progress(self, stalled_after_s: float) -> Due | None:
        """The step under way, or one that fails at each tick; a large spec has more time."""
        failure = self._background.failure
        if failure is not None:
            return Due("", f"a restart: compaction has ended by a bug: {failure!r}", 0.0)
        # After one failure alone the next try may be a large step, which has its time.
        if self._failures > 1 or (self._failures and not self._turn.locked()):
            return Due(self._done, f"compaction fails: {self._failure}")
        if not self._turn.locked():
            return None
        slowest = min(SLOWEST_BYTES_PER_S, self._config.compaction_rate_max_bytes_per_s / 8)
        after_s = stalled_after_s + self._spec_bytes / slowest
        return Due(self._done, f"a compaction step of {self._spec_bytes} bytes", after_s)

    async def close(self) -> None:
        """Gives up what is under way; seals the tenure."""
        await self._stop()
        await self._seal_tenure()

    async def kill(self) -> None:
        """Stops at once, as a crash would."""
        await self._stop()
        if self._tenure is not None:
            await self._tenure.kill()

    async def _stop(self) -> None:
        for call in self._calls:
            call.cancel()
        await self._background.close()
        await self._executor.close()

    async def tick(self) -> None:
        """Compacts until nothing is due, or something is away: then the next tick goes on."""
        if self._clock.monotonic() < self._resume_at:
            return
        try:
            async with self._turn:
                await self._steps(choose, lambda: not self._waiting)
        except (Unavailable, OutcomeUnknown) as error:
            self._failure = str(error)
            self._failures += 1
            log.warning("compaction goes on at its next tick", extra={"reason": str(error)})
        else:
            self._note_done()

    async def compact_all(self) -> None:
        """All that is not settled, in as few merges as may be, then what these leave due.

        It ends with its caller, and with the compactor: a request that the store never answers
        would hold it for ever. Errors: Unavailable, Closed.
        """
        choosers = (_all_of().choose, choose, _Once().choose)
        work = asyncio.ensure_future(self._compact_by(choosers, lambda: True))
        self._calls.add(work)
        try:
            await asyncio.wait({work})
        finally:
            self._calls.discard(work)
            if not work.done():
                work.cancel()
                await asyncio.wait({work})
        if work.cancelled():
            raise Closed("the compactor was closed; what it had not committed changes nothing")
        work.result()

    async def _compact_by(self, choosers: Sequence[Chooser], is_wanted: Callable[[], bool]) -> None:
        self._waiting += 1
        try:
            await self._turn.acquire()
        finally:
            self._waiting -= 1
        try:
            for one in choosers:
                await self._steps(one, is_wanted)
        finally:
            self._turn.release()

    @contextmanager
    def lent(self, owner: str) -> Iterator[RemoteExecutor]:
        """Jobs go to an executor elsewhere, until it ends or this does. `owner`: for people.

        Errors: Conflict (there is one), Closed.
        """
        remote = RemoteExecutor(owner, self._store, self._offload)
        with self._executor.lent(remote):
            yield remote

    async def compact_all_by(self, remote: RemoteExecutor) -> Totals:
        """As `compact_all`, of what is there at the call, while `remote` is; what was committed
        meanwhile. What comes later is left to `tick`, so that it ends however much is appended.

        The step under way is ended in order when the caller is cancelled. Errors: why `remote`
        ended, Unavailable.
        """
        due = _FirstSeen(choose, with_dead=True)
        choosers = (_all_of().choose, due.choose, _Once().choose)
        before = self._totals
        try:
            await self._background.shielded(
                lambda: self._compact_by(choosers, lambda: remote.ended is None),
                name="compact_all_by",
            )
        except RemoteLost:
            log.warning("an executor elsewhere was lost", extra={"reason": str(remote.ended)})
        if remote.ended is not None:
            raise remote.ended
        return self._totals.since(before)

    async def _watch(self) -> None:
        self._executor.set_busy(self._pressure() > self._config.compaction_busy_share)

    async def _steps(self, choose: Chooser, is_wanted: Callable[[], bool]) -> None:
        """Until nothing is due, or more was given up than is remembered: that would never end."""
        forgotten = self._forgotten
        while is_wanted() and self._forgotten == forgotten and await self._step(choose):
            self._note_done()

    def _note_done(self) -> None:
        self._done += 1
        self._failure, self._failures = "", 0

    async def _step(self, choose: Chooser) -> bool:
        """One spec, of the merge that is most due. False: nothing is due."""
        now = self._clock.monotonic()
        self._replaced = {one: until for one, until in self._replaced.items() if until > now}
        self._futile = {ids: until for ids, until in self._futile.items() if until > now}
        busy = frozenset[int]().union(*(merge.ids for merge in self._merges))
        # Such a set can only stay as it is: the catalog has room for others in its place.
        full = (ids for ids in self._futile if len(ids) >= INPUTS_MAX)
        await self._forget_dead_suspects()
        resting = self._quarantine.resting
        self._metrics.quarantined.set(len(resting))
        candidates = await self._catalog.look(resting.union(self._replaced, *full))
        self._show()
        free = [one for one in candidates if one.row.object_id not in busy]
        choice = choose(free, self._config, self._futile)
        if choice is not None and all(choice.tier > merge.tier for merge in self._merges):
            self._merges.append(_Merge(choice.tier, list(choice.inputs)))
        if not self._merges:
            return False
        merge = max(self._merges, key=lambda one: one.tier)
        try:
            await self._advance(merge)
        finally:
            # Not before: the commit follows a long spec, and is no standstill.
            self._spec_bytes = 0
        return True

    async def _advance(self, merge: _Merge) -> None:
        """Its next spec. A merge that fails is dropped: the next look finds what is left of it."""
        started = self._clock.monotonic()
        try:
            found = await self._plan(merge)
            if found.spec is not None:
                await self._carry_out(found.spec)
                merge.replaced |= {one.row.object_id for one in found.spec.inputs}
                self._metrics.spec_seconds.observe(self._clock.monotonic() - started)
        except BaseException as error:
            self._merges.remove(merge)
            if not isinstance(error, StreamlogError):
                raise
            await self._failed(merge, error)
            return
        if found.next_stream is not None:
            merge.next_stream = found.next_stream
            return
        self._merges.remove(merge)
        if not merge.replaced:
            self._give_up(merge)
            return
        self._catalog.forget(merge.replaced)
        until = self._clock.monotonic() + REPLACED_S
        self._replaced.update(dict.fromkeys(merge.replaced, until))

    async def _plan(self, merge: _Merge) -> MergePlan:
        """From what lives now."""
        point = await self._metadata.compaction_point()
        stats: list[ObjectStats] = []
        for row in merge.inputs:
            known = await self._metadata.object(row.object_id)
            if known is not None:
                stats.append(await self._catalog.stats(known))
        if not stats:
            return MergePlan(None, None)
        end = end_stream(stats, merge.next_stream, self._config)
        own = {f.row.object_id: f.rows.between(merge.next_stream, end) for f in stats}
        live = await self._metadata.live_parts(own)
        inputs: list[PlannedInput] = []
        before: dict[int, int] = {}
        alive: dict[int, int] = {}
        for one in stats:
            rows = live[one.row.object_id]
            if len(rows):
                sizes = await self._offload.run(Lane.CPU, one.bytes_of, rows)
                inputs.append(PlannedInput(one.row, rows, sizes, one.attribute_bytes))
                before[one.row.object_id] = one.bytes_between(merge.next_stream, end)
                alive[one.row.object_id] = sum(sizes)
        # Ranges are not bytes: it is only now that is known how much would be freed.
        dead = [one for one in inputs if self._is_dead([one], before, alive)]
        if merge.tier == DEAD and dead:
            inputs = dead
        is_reclaiming = merge.tier in (DEAD, ALL) and self._is_dead(inputs, before, alive)
        asked = MergePlanRequest(point, inputs, end, self._config, is_reclaiming)
        return await self._executor.plan(asked)

    def _is_dead(
        self, inputs: Sequence[PlannedInput], before: Mapping[int, int], alive: Mapping[int, int]
    ) -> bool:
        """Most of the bytes that they held, by object, are trimmed."""
        ids = [one.row.object_id for one in inputs]
        live, held = sum(alive[i] for i in ids), sum(before[i] for i in ids)
        return live <= held * (1 - self._config.dead_share_min)

    async def _carry_out(self, spec: CompactionSpec) -> None:
        tenure = await self._opened()
        inputs = [one.row.object_id for one in spec.inputs]
        # However this ends, the ids are committed or given up.
        async with tenure.owned_object_ids(len(spec.outputs)) as ids:
            job = Job(spec, self._metadata.cluster_id, tenure.tenure, ids)
            outcome = await self._run(job)
            outputs = await self._offload.run(Lane.CPU, outcome.outputs, spec)
            await self._commit(tenure, Replacement(spec.point, inputs, outputs))
        self._trust(inputs)
        self._metrics.specs.labels("committed").inc()
        self._metrics.inputs.inc(len(inputs))
        self._metrics.outputs.inc(len(ids))
        done = self._totals
        self._totals = Totals(done.specs + 1, done.inputs + len(inputs), done.outputs + len(ids))
        log.info(
            "compacted",
            extra={
                "inputs": len(inputs),
                "outputs": len(ids),
                "rows": spec.rows,
                "size_bytes": outcome.bytes_written,
            },
        )

    async def _run(self, job: Job) -> MergeOutcome:
        self._spec_bytes = sum(wanted.size_bytes for wanted in job.spec.outputs)
        self._metrics.running.set(1)
        try:
            outcome = await self._executor.run(job)
        except RemoteLost:
            # A sealed tenure's ids are swept again a day later, a living one's after an hour.
            await self._seal_tenure()
            raise
        finally:
            self._metrics.running.set(0)
        self._metrics.read_bytes.inc(outcome.bytes_read)
        self._metrics.written_bytes.inc(outcome.bytes_written)
        self._metrics.gets.inc(outcome.gets)
        return outcome

    async def _commit(self, tenure: CompactionTenure, replacement: Replacement) -> None:
        """Much work was put into the outputs: an absence of the stores is waited out for a time."""
        for tries_left in reversed(range(COMMIT_TRIES)):
            try:
                await tenure.commit(replacement)
            except (StoreUnavailable, MetadataUnavailable):
                if not tries_left:
                    raise
                await asyncio.sleep(COMMIT_RETRY_S)
            else:
                return

    async def _opened(self) -> CompactionTenure:
        if self._tenure is None:
            self._tenure = await self._metadata.open_compaction_tenure(ids_max=OUTPUTS_MAX)
        return self._tenure

    async def _failed(self, merge: _Merge, error: StreamlogError) -> None:
        """Raises what the next tick is to repeat."""
        outcome = _outcome(error)
        self._metrics.specs.labels(outcome).inc()
        if isinstance(error, TenureFenced):
            log.warning("the compactor's tenure was sealed", extra={"reason": str(error)})
            await self._drop_tenure()
            raise Unavailable("the compactor opens a new tenure") from error
        if isinstance(error, DiskFull):
            self._resume_at = self._clock.monotonic() + DISK_FULL_S
        if isinstance(error, Unavailable | OutcomeUnknown):
            raise error
        if isinstance(error, Conflict):
            log.info("another compaction came first", extra={"reason": str(error)})
            return
        key = str(error.fields.get("object_key", ""))
        if isinstance(error, Corrupt | ObjectNotFound) and key.startswith(DATA_PREFIX):
            await self._suspect(id_of_key(key), error)
            return
        if isinstance(error, Internal):
            # Its ids may be neither committed nor released; the next tenure sweeps them.
            await self._drop_tenure()
        log.error("a merge is given up: %s", error, exc_info=error)
        self._give_up(merge)

    async def _seal_tenure(self) -> None:
        """The next job opens another one."""
        tenure, self._tenure = self._tenure, None
        if tenure is None:
            return
        try:
            await tenure.close()
        except (Unavailable, OutcomeUnknown, TenureFenced) as error:
            log.warning("the compactor's tenure stays open", extra={"reason": str(error)})

    async def _drop_tenure(self) -> None:
        dropped, self._tenure = self._tenure, None
        if dropped is not None:
            await dropped.kill()

    async def _suspect(self, object_id: int, error: StreamlogError) -> None:
        """Damaged objects are left alone at once, missing ones unless they have died meanwhile."""
        if isinstance(error, ObjectNotFound):
            await self._metadata.catch_up()
            if await self._metadata.object(object_id) is None:
                self._missed.pop(object_id, None)
                return
            self._missed[object_id] = self._missed.get(object_id, 0) + 1
            if self._missed[object_id] < MISSED_MAX:
                return
        rest_s = self._quarantine.add(object_id)
        self._metrics.quarantined.set(len(self._quarantine.resting))
        log.error(
            "compaction leaves an object alone for %.0f minutes: %s",
            rest_s / 60,
            error,
            extra={"object_id": object_id, **error.fields},
        )

    async def _forget_dead_suspects(self) -> None:
        """Those that live are tried again, once their time has come."""
        for object_id in self._quarantine.due:
            if await self._metadata.object(object_id) is None:
                self._trust([object_id])

    def _trust(self, object_ids: Sequence[int]) -> None:
        self._quarantine.clear(object_ids)
        for object_id in object_ids:
            self._missed.pop(object_id, None)

    def _give_up(self, merge: _Merge) -> None:
        """The same inputs alone are not tried again for a time: more of them may die."""
        self._futile[merge.ids] = self._clock.monotonic() + FUTILE_S
        if len(self._futile) > FUTILE_MAX:
            del self._futile[next(iter(self._futile))]
            self._forgotten += 1

    def _show(self) -> None:
        found = {
            (str(tier.steps), "large" if tier.is_large else "small"): count
            for tier, count in self._catalog.backlog.items()
        }
        self._labels |= found.keys()
        for labels in self._labels:
            self._metrics.backlog.labels(*labels).set(found.get(labels, 0))

    def _fail(self, error: BaseException) -> None:
        # A node without compaction serves on; objects pile up, which the backlog shows.
        self._metrics.failed.set(1)


class _FirstSeen:
    """As `among`, of what is there at the first look, without dead objects if so said: what comes
    later waits, outputs among it."""

    def __init__(self, among: Chooser, *, with_dead: bool) -> None:
        self._among = among
        self._with_dead = with_dead
        self._ids: frozenset[int] | None = None

    def choose(
        self,
        candidates: list[Candidate],
        config: CompactionConfig,
        futile: Collection[frozenset[int]],
    ) -> Choice | None:
        if self._ids is None:
            self._ids = frozenset(
                one.row.object_id
                for one in candidates
                if self._with_dead or tier_of(one, config) != DEAD
            )
        left = [one for one in candidates if one.row.object_id in self._ids]
        return self._among(left, config, futile)


def _all_of() -> _FirstSeen:
    """Dead objects, which may be large and are rewritten alone, are left to `choose`."""
    return _FirstSeen(choose_all, with_dead=False)


class _Once:
    """One merge of all that is not settled."""

    def __init__(self) -> None:
        self._is_chosen = False

    def choose(
        self,
        candidates: Collection[Candidate],
        config: CompactionConfig,
        futile: Collection[frozenset[int]],
    ) -> Choice | None:
        if self._is_chosen:
            return None
        self._is_chosen = True
        return choose_all(candidates, config, futile)


def _outcome(error: StreamlogError) -> str:
    kinds: list[tuple[type[StreamlogError], str]] = [
        (TenureFenced, "fenced"),
        (Conflict, "conflict"),
        (Corrupt, "corrupt"),
        (ObjectNotFound, "gone"),
        (Unavailable, "unavailable"),
        (OutcomeUnknown, "unavailable"),
        (Internal, "failed"),
    ]
    return next((name for kind, name in kinds if isinstance(error, kind)), "failed")
