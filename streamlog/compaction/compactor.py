"""The compactor of a node: chooses objects, plans specs, has them carried out, commits them.

1. One spec is under way at a time. Fresh objects come first, also between the specs of a long
   merge, because they are the ones that pile up.
2. A merge that is too large for one spec is done stream by stream. Each spec is planned anew from
   what is live then, so that trims, takeovers and restarts in between need no care.
3. A merge that fails is looked at again at the next tick. A damaged or missing input is left alone
   for a time, with an error in the log: fsck finds out what is lost.
4. A job that ends before its commit leaves orphans, which the collector deletes.
5. A remote executor may carry out jobs for a time (`remote`); plans and commits stay here.
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
    Fenced,
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
"""A replaced object shows as live until the next checkpoint; this outlasts it."""
DISK_FULL_S = 120.0
"""Pause after a full disk: each try reads much, and takes the last room from appends."""
SLOWEST_BYTES_PER_S = 1 << 20
"""A step that is slower than this counts as stalled."""
MISSED_MAX = 3
"""So often a live object may be missing before it goes into quarantine."""


@dataclass(frozen=True, slots=True)
class Totals:
    """Committed specs, their inputs and their outputs."""

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
    """Objects that one or more specs merge; streams below `next_stream` are done."""

    tier: Tier
    inputs: list[ObjectRow]
    next_stream: int = 0
    replaced: set[int] = field(default_factory=set)

    @property
    def ids(self) -> frozenset[int]:
        return frozenset(row.object_id for row in self.inputs)


@dataclass(frozen=True, slots=True)
class CompactorParts:
    """What a compactor works with. The compactor closes the executor, its caller the rest."""

    metadata: CompactionMetadata
    store: ObjectStore
    executor: Executor
    offload: Offload
    clock: Clock
    metrics: CompactionMetrics


class Compactor:
    """`tick` compacts until nothing is due. Made inside a running loop.

    It owns its tenure, its executor and its background tasks.
    """

    def __init__(
        self,
        parts: CompactorParts,
        config: CompactionConfig,
        pressure: Callable[[], float] = lambda: 0.0,
        catalog: Catalog | None = None,
    ) -> None:
        """`pressure`: the share of the append budget in use, 0 to 1."""
        self._metadata = parts.metadata
        self._executor = SwitchedExecutor(parts.executor)
        self._store = parts.store
        self._offload = parts.offload
        self._clock = parts.clock
        self._config = config
        self._metrics = metrics = parts.metrics
        self._pressure = pressure
        self._catalog = catalog or Catalog(parts.metadata, parts.store, parts.offload, config)
        self._background = Background("compactor", self._fail)
        self._tenure: CompactionTenure | None = None
        self._is_tenure_over = False
        """Whether a remote executor may still store outputs of the tenure that nobody waits for."""
        self._merges: list[_Merge] = []
        self._futile: dict[frozenset[int], float] = {}
        """Sets of objects whose merge gains nothing, and until when they are left alone."""
        self._forgotten = 0
        """Such sets that were dropped early, because there were more than FUTILE_MAX."""
        self._quarantine = Quarantine(parts.clock)
        self._replaced: dict[int, float] = {}
        """Inputs that were replaced, and until when they are left alone."""
        self._missed: dict[int, int] = {}
        self._resume_at = 0.0
        self._labels: set[tuple[str, str]] = set()
        self._totals = Totals()
        metrics.lent.set_function(lambda: float(self._executor.is_lent))
        self._turn = asyncio.Lock()
        self._done = 0
        """Steps and ticks that succeeded."""
        self._failure = ""
        self._failures = 0
        """Ticks in a row that failed; `_failure` is the last one's reason."""
        self._spec_bytes = 0
        """Size of the spec that is carried out now."""
        self._waiting = 0
        """Callers that wait for the turn; `tick` gives it up between two specs."""
        self._calls: set[asyncio.Future[None]] = set()
        """Calls of `compact_all` that are under way."""

    @property
    def backlog(self) -> Mapping[Tier, int]:
        """Objects that are not fully compacted, as of the last look, by tier."""
        return self._catalog.backlog

    def start(self) -> None:
        """Compacts in the background until `close`."""
        self._background.every(
            lambda: self._config.compaction_interval_ms / 1000, self.tick, name="compact"
        )
        self._background.every(lambda: PRESSURE_INTERVAL_S, self._watch, name="pressure")

    def progress(self, stalled_after_s: float) -> Due | None:
        """The step under way, or the failure of every tick; a large spec has more time."""
        failure = self._background.failure
        if failure is not None:
            return Due("", f"a restart: compaction has ended by a bug: {failure!r}", 0.0)
        # After a single failure the next try may be a large step, which has its time.
        if self._failures > 1 or (self._failures and not self._turn.locked()):
            return Due(self._done, f"compaction fails: {self._failure}")
        if not self._turn.locked():
            return None
        slowest = min(SLOWEST_BYTES_PER_S, self._config.compaction_rate_max_bytes_per_s / 8)
        after_s = stalled_after_s + self._spec_bytes / slowest
        return Due(self._done, f"a compaction step of {self._spec_bytes} bytes", after_s)

    async def close(self) -> None:
        """Cancels the work under way and seals the tenure."""
        await self._stop()
        await self._seal_tenure()

    async def kill(self) -> None:
        """Stops at once, as after a crash: the tenure is not sealed."""
        await self._stop()
        if self._tenure is not None:
            await self._tenure.kill()

    async def _stop(self) -> None:
        for call in self._calls:
            call.cancel()
        await self._background.close()
        await self._executor.close()

    async def tick(self) -> None:
        """Compacts until nothing is due. If a store does not answer, or answers wrongly, the next
        tick goes on; `progress` tells what stays wrong.

        Errors: Fenced, Internal.
        """
        if self._clock.monotonic() < self._resume_at:
            return
        try:
            async with self._turn:
                await self._steps(choose, lambda: not self._waiting)
        except (Fenced, Internal):
            raise
        except StreamlogError as error:
            self._failure = str(error)
            self._failures += 1
            log.warning(
                "compaction goes on at its next tick",
                extra={"reason": str(error), "error": type(error).__name__},
            )
        else:
            self._note_done()

    async def compact_all(self) -> None:
        """Merges all objects that are not fully compacted, in as few merges as possible, then
        those that are still due.

        The work is cancelled with its caller, and when the compactor closes: else a request that
        the store never answers would hold it for ever. Errors: Unavailable, Closed.
        """
        choosers = (_one_large_merge().choose, choose, _Once().choose)
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
            for chooser in choosers:
                await self._steps(chooser, is_wanted)
        finally:
            self._turn.release()

    @contextmanager
    def lent(self, owner: str) -> Iterator[RemoteExecutor]:
        """Jobs go to a remote executor until it ends, or this context does. `owner` names it in
        messages.

        Errors: Conflict (another remote executor has the jobs), Closed.
        """
        remote = RemoteExecutor(owner, self._store, self._offload)
        with self._executor.lent(remote):
            yield remote

    async def compact_all_by(self, remote: RemoteExecutor) -> Totals:
        """Like `compact_all` for the objects that exist at the call, until `remote` ends. Returns
        what was committed meanwhile.

        Later objects are left to `tick`, so that the call ends however much is appended. If the
        caller is cancelled, the step under way still ends in order. Errors: the reason for which
        `remote` ended, Unavailable.
        """
        due = _FirstSeen(choose, with_dead=True)
        choosers = (_one_large_merge().choose, due.choose, _Once().choose)
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
        """Steps until nothing is due. If a futile set was forgotten early the loop stops, because
        the same set might be chosen for ever."""
        forgotten = self._forgotten
        while is_wanted() and self._forgotten == forgotten and await self._step(choose):
            self._note_done()

    def _note_done(self) -> None:
        self._done += 1
        self._failure, self._failures = "", 0

    async def _step(self, choose: Chooser) -> bool:
        """Carries out one spec of the most urgent merge. False: nothing is due."""
        now = self._clock.monotonic()
        self._replaced = {
            object_id: until for object_id, until in self._replaced.items() if until > now
        }
        self._futile = {ids: until for ids, until in self._futile.items() if until > now}
        busy = frozenset[int]().union(*(merge.ids for merge in self._merges))
        # Such a set cannot grow; without it the catalog has room for other objects.
        full = (ids for ids in self._futile if len(ids) >= INPUTS_MAX)
        await self._forget_dead_suspects()
        excluded = self._quarantine.excluded
        self._metrics.quarantined.set(len(excluded))
        candidates = await self._catalog.look(excluded.union(self._replaced, *full))
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
            # Only now: the commit still belongs to the spec's time.
            self._spec_bytes = 0
        return True

    async def _advance(self, merge: _Merge) -> None:
        """The merge's next spec. A failed merge is dropped; the next look finds what is left."""
        started = self._clock.monotonic()
        try:
            plan = await self._plan(merge)
            if plan.spec is not None:
                await self._execute(plan.spec)
                merge.replaced |= {one.row.object_id for one in plan.spec.inputs}
                self._metrics.spec_seconds.observe(self._clock.monotonic() - started)
        except BaseException as error:
            self._merges.remove(merge)
            if not isinstance(error, StreamlogError):
                raise
            await self._failed(merge, error)
            return
        if plan.next_stream is not None:
            merge.next_stream = plan.next_stream
            return
        self._merges.remove(merge)
        if not merge.replaced:
            self._give_up(merge)
            return
        self._catalog.forget(merge.replaced)
        until = self._clock.monotonic() + REPLACED_S
        self._replaced.update(dict.fromkeys(merge.replaced, until))

    async def _plan(self, merge: _Merge) -> MergePlan:
        """Plans the merge's next spec from the ranges that are live now."""
        point = await self._metadata.compaction_point()
        stats: list[ObjectStats] = []
        for row in merge.inputs:
            current = await self._metadata.object(row.object_id)
            if current is not None:
                stats.append(await self._catalog.stats(current))
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
        # The tier counted ranges; only the sizes tell how many bytes a rewrite would free.
        dead = [one for one in inputs if self._is_dead([one], before, alive)]
        if merge.tier == DEAD and dead:
            inputs = dead
        is_reclaiming = merge.tier in (DEAD, ALL) and self._is_dead(inputs, before, alive)
        request = MergePlanRequest(point, inputs, end, self._config, is_reclaiming)
        return await self._executor.plan(request)

    def _is_dead(
        self, inputs: Sequence[PlannedInput], before: Mapping[int, int], alive: Mapping[int, int]
    ) -> bool:
        """Whether the inputs' bytes are mostly trimmed; `before` and `alive` are by object id."""
        ids = [one.row.object_id for one in inputs]
        live, held = sum(alive[i] for i in ids), sum(before[i] for i in ids)
        return live <= held * (1 - self._config.dead_share_min)

    async def _execute(self, spec: CompactionSpec) -> None:
        tenure = await self._opened()
        inputs = [one.row.object_id for one in spec.inputs]
        # On every way out the ids are committed or given up.
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
        is_lent = self._executor.is_lent
        try:
            outcome = await self._executor.run(job)
        except RemoteLost:
            # The remote may store outputs later. The orphans of a sealed tenure are deleted once
            # more after a day, those of a live one after an hour.
            await self._seal_tenure()
            raise
        except asyncio.CancelledError:
            # A cancelled call waits for no store: the next job seals the tenure, or `close` does.
            self._is_tenure_over = is_lent
            raise
        finally:
            self._metrics.running.set(0)
        self._metrics.read_bytes.inc(outcome.bytes_read)
        self._metrics.written_bytes.inc(outcome.bytes_written)
        self._metrics.gets.inc(outcome.gets)
        return outcome

    async def _commit(self, tenure: CompactionTenure, replacement: Replacement) -> None:
        """Commits; outages of the stores are waited out, because the outputs cost much work."""
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
        if self._is_tenure_over:
            await self._seal_tenure()
        if self._tenure is None:
            self._tenure = await self._metadata.open_compaction_tenure(ids_max=OUTPUTS_MAX)
        return self._tenure

    async def _failed(self, merge: _Merge, error: StreamlogError) -> None:
        """Counts and logs the failure. Errors: those after which the next tick tries again."""
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
            # The state of its ids is unclear; they are deleted once the tenure is sealed.
            await self._drop_tenure()
        log.error("a merge is given up: %s", error, exc_info=error)
        self._give_up(merge)

    async def _seal_tenure(self) -> None:
        """Seals the tenure, if there is one; the next job opens another."""
        tenure, self._tenure = self._tenure, None
        self._is_tenure_over = False
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
        """Puts a damaged object into quarantine at once, a missing one if it is still live."""
        if isinstance(error, ObjectNotFound):
            await self._metadata.catch_up()
            if await self._metadata.object(object_id) is None:
                self._missed.pop(object_id, None)
                return
            self._missed[object_id] = self._missed.get(object_id, 0) + 1
            if self._missed[object_id] < MISSED_MAX:
                return
        pause_s = self._quarantine.add(object_id)
        self._metrics.quarantined.set(len(self._quarantine.excluded))
        log.error(
            "compaction leaves an object alone for %.0f minutes: %s",
            pause_s / 60,
            error,
            extra={"object_id": object_id, **error.fields},
        )

    async def _forget_dead_suspects(self) -> None:
        """Quarantined objects that died meanwhile are forgotten; live ones are tried again."""
        for object_id in self._quarantine.due:
            if await self._metadata.object(object_id) is None:
                self._trust([object_id])

    def _trust(self, object_ids: Sequence[int]) -> None:
        self._quarantine.clear(object_ids)
        for object_id in object_ids:
            self._missed.pop(object_id, None)

    def _give_up(self, merge: _Merge) -> None:
        """Leaves this set of inputs alone for a time, after which more of it may be dead."""
        self._futile[merge.ids] = self._clock.monotonic() + FUTILE_S
        if len(self._futile) > FUTILE_MAX:
            del self._futile[next(iter(self._futile))]
            self._forgotten += 1

    def _show(self) -> None:
        counts = {
            (str(tier.steps), "large" if tier.is_large else "small"): count
            for tier, count in self._catalog.backlog.items()
        }
        self._labels |= counts.keys()
        for labels in self._labels:
            self._metrics.backlog.labels(*labels).set(counts.get(labels, 0))

    def _fail(self, error: BaseException) -> None:
        # A node without compaction goes on serving; objects pile up, which the backlog shows.
        self._metrics.failed.set(1)


class _FirstSeen:
    """Chooses like `among` from the objects of the first look; later ones, outputs too, wait.

    `with_dead`: mostly dead objects count as well.
    """

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


def _one_large_merge() -> _FirstSeen:
    """One large merge of what is there. Dead objects may be large and are rewritten alone, so they
    are left to `choose`."""
    return _FirstSeen(choose_all, with_dead=False)


class _Once:
    """Chooses one merge of all objects that are not fully compacted."""

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
