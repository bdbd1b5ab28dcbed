"""The object ids that a tenure may store: those in [floor, floor + W) of its own blocks.

1. An id is open from `take` until it is committed, or given up and then swept.
2. A commit holds its ids from the call until a definite answer. Such an id cannot be given up: the
   record may be applied late, when its object would be deleted already.
3. The floor is the lowest open id. Only a floor in a committed record counts (`_durable`): after a
   crash a sweep learns from it where uncommitted objects may exist.
4. Positions count a tenure's ids through all its blocks, so that a window can cross a block's end.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from types import TracebackType

from streamlog.metadata.keys.id_block import OBJECTS

BLOCK_IDS = OBJECTS.block_ids
BITS = OBJECTS.block_bits


def position_of(blocks: Sequence[int], object_id: int) -> int:
    """The id's position; a block's end (exclusive) counts as the next block's first position.

    An id below all blocks (a floor of 0: nothing committed) is position 0.
    """
    for index, block in enumerate(blocks):
        if block << BITS <= object_id <= (block + 1) << BITS:
            return index * BLOCK_IDS + object_id - (block << BITS)
    return 0


def id_at(blocks: Sequence[int], position: int) -> int:
    """The id at a position below len(blocks) · 2^20; the end of the last block past that."""
    index, offset = divmod(position, BLOCK_IDS)
    if index >= len(blocks):
        return (blocks[-1] + 1) << BITS
    return (blocks[index] << BITS) + offset


def window_ids(blocks: Sequence[int], floor: int, window: int) -> list[int]:
    """Every id of which the tenure may have stored an object without committing it."""
    if not blocks:
        return []
    start = position_of(blocks, floor)
    end = min(start + window, len(blocks) * BLOCK_IDS)
    return [id_at(blocks, position) for position in range(start, end)]


class ObjectIds:
    """One tenure's window of object ids: which are open, given up, or being committed."""

    def __init__(self, block: int, window: int) -> None:
        self._blocks = [block]
        """It grows for as long as the tenure lives: one number for a million ids."""
        self._window = window
        self._next = 0
        self._durable = 0
        self._open: set[int] = set()
        """At most `window` ids, and so are `_orphans` and `_committing`, which are parts of it."""
        self._orphans: set[int] = set()
        self._committing: set[int] = set()

    @property
    def needs_block(self) -> bool:
        return self._next >= len(self._blocks) * BLOCK_IDS

    @property
    def has_room(self) -> bool:
        return self.room > 0

    @property
    def room(self) -> int:
        """Number of ids that may be taken now."""
        return self._durable + self._window - self._next

    @property
    def can_raise_floor(self) -> bool:
        """Whether a record with the current floor would open the window."""
        return self._floor_position(()) > self._durable

    @property
    def is_held_by_orphan(self) -> bool:
        """Whether the floor cannot rise before an id that was given up is swept."""
        return bool(self._orphans) and min(self._open) in self._orphans

    @property
    def uncommitted(self) -> frozenset[int]:
        """Ids that were taken, and neither committed nor given up."""
        return frozenset(self._open - self._orphans)

    @property
    def orphans(self) -> list[int]:
        """Ids that were given up and not swept yet."""
        return sorted(self._orphans)

    @property
    def taken(self) -> int:
        """Number of ids taken so far."""
        return self._next

    @property
    def standing(self) -> str:
        """Why the window does not move, in words."""
        if not self._open:
            return "a new block of ids is due"
        return (
            f"{len(self._open)} of {self._window} may be uncommitted, {len(self._orphans)} of them "
            f"were given up and not deleted, the oldest is {min(self._open)}"
        )

    def holds(self, object_id: int) -> bool:
        """Whether the id was taken, and neither committed nor swept."""
        return object_id in self._open

    def add_block(self, block: int) -> None:
        self._blocks.append(block)

    def take(self) -> int:
        object_id = id_at(self._blocks, self._next)
        self._next += 1
        self._open.add(object_id)
        return object_id

    def floor(self, closing: Collection[int] = ()) -> int:
        """The floor once the ids in `closing` are committed."""
        return id_at(self._blocks, self._floor_position(closing))

    def begin_commit(self, object_ids: Iterable[int]) -> None:
        """A commit holds these ids from now on, until `committed` or `refused`."""
        self._committing.update(object_ids)

    def committed(self, object_ids: Iterable[int], floor: int) -> None:
        """A record that commits these ids, with that floor, is durable."""
        self._open.difference_update(object_ids)
        self._orphans &= self._open
        self._committing &= self._open
        self._durable = max(self._durable, position_of(self._blocks, floor))

    def refused(self, object_ids: Iterable[int]) -> None:
        """No record will ever commit these ids: their owner gives them up, or tries again."""
        self._committing.difference_update(object_ids)

    def give_up(self, object_ids: Iterable[int]) -> None:
        """These ids will never be committed, except those that a commit holds or has committed."""
        self._orphans.update(object_ids)
        self._orphans &= self._open - self._committing

    def swept(self, object_ids: Iterable[int]) -> None:
        """The objects of these ids, which were given up, are deleted."""
        gone = self._orphans.intersection(object_ids)
        self._orphans -= gone
        self._open -= gone

    def _floor_position(self, closing: Collection[int]) -> int:
        still_open = self._open.difference(closing)
        if not still_open:
            return self._next
        # Blocks of one tenure rise, so the lowest id has the lowest position.
        return position_of(self._blocks, min(still_open))


class OwnedIds:
    """Object ids owned for an `async with` block, which is the only way to get ids.

    At the end of the block every id that no commit holds is given up, whatever ended the block. An
    id that is neither committed nor given up would hold the floor for ever, and uploads would stop
    when the window is used up.
    """

    def __init__(
        self, take: Callable[[], Awaitable[list[int]]], give_up: Callable[[list[int]], None]
    ) -> None:
        self._take = take
        self._give_up = give_up
        self._ids: list[int] = []

    async def __aenter__(self) -> list[int]:
        self._ids = await self._take()
        return self._ids

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._give_up(self._ids)
