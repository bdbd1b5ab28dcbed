"""Where an output's bytes go: to the store piece by piece, or into a spool until it is whole."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from streamlog.compaction.execute.spool import Spool
from streamlog.errors import OutcomeUnknown, StoreUnavailable
from streamlog.objectstore.errors import refusals_as_unavailable
from streamlog.objectstore.interface import ObjectStore, ObjectUpload, upload_to
from streamlog.runtime.buffers import Buffer, parts_size
from streamlog.runtime.offload import Lane, Offload

log = logging.getLogger(__name__)

PUT_TRIES = 3
WHAT = "an output of a compaction"


class Output(Protocol):
    """`written_bytes`: bytes in memory, perhaps in buffers of the inputs, until `drain`."""

    @property
    def written_bytes(self) -> int: ...

    def write(self, parts: Sequence[Buffer]) -> None:
        """Adds bytes, from any one thread. Errors: DiskFull, StoreUnavailable."""
        ...

    async def drain(self) -> None:
        """The written bytes have left the buffers that they came from.

        Errors: StoreUnavailable.
        """
        ...

    async def finish(self) -> None:
        """The object is in the store. Errors: StoreUnavailable, DiskFull."""
        ...

    def close(self) -> None:
        """Drops an output that is not finished; harmless when called again."""
        ...


class UploadedOutput:
    """Goes to the store while it grows."""

    def __init__(self, upload: ObjectUpload) -> None:
        self._upload = upload
        self._parts: list[Buffer] = []
        self.written_bytes = 0

    def write(self, parts: Sequence[Buffer]) -> None:
        self._parts += parts
        self.written_bytes += parts_size(parts)

    async def drain(self) -> None:
        parts, self._parts, self.written_bytes = self._parts, [], 0
        with refusals_as_unavailable(WHAT):
            await self._upload.write(parts)

    async def finish(self) -> None:
        await self.drain()
        try:
            with refusals_as_unavailable(WHAT):
                await self._upload.finish()
        except OutcomeUnknown as error:
            raise StoreUnavailable(error.message, **error.fields) from error

    def close(self) -> None:
        self._upload.give_up()
        self._parts = []


class SpooledOutput:
    """Waits in a spool until it is whole."""

    written_bytes = 0

    def __init__(self, store: ObjectStore, key: str, spool: Spool, offload: Offload) -> None:
        self._store = store
        self._key = key
        self._spool = spool
        self._offload = offload

    def write(self, parts: Sequence[Buffer]) -> None:
        self._spool.write(parts)

    async def drain(self) -> None:
        return

    async def finish(self) -> None:
        content = await self._offload.run(Lane.CPU, self._spool.content)
        for _ in range(PUT_TRIES):
            try:
                # Same key, same bytes.
                with refusals_as_unavailable(WHAT):
                    await self._store.put(self._key, content)
            except OutcomeUnknown as error:
                log.warning("an output's PUT gave no answer", extra={"reason": str(error)})
            else:
                return
        raise StoreUnavailable(
            f"storing {self._key} gave no answer {PUT_TRIES} times", operation="put"
        )

    def close(self) -> None:
        self._spool.close()


async def begin_output(
    store: ObjectStore,
    key: str,
    about_bytes: int,
    spool: Callable[[], Spool],
    offload: Offload,
) -> Output:
    """`about_bytes`: about the output's size. `spool`: for stores that take only whole objects.

    Errors: DiskFull, StoreUnavailable.
    """
    upload = upload_to(store, key, about_bytes)
    if upload is not None:
        return UploadedOutput(upload)
    return SpooledOutput(store, key, await offload.run(Lane.CPU, spool), offload)
