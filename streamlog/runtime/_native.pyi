from collections.abc import Sequence
from typing import Generic, TypeVar

from streamlog.runtime.buffers import Buffer

_Token = TypeVar("_Token")

def read_now(descriptor: int, position: int, length: int, /) -> bytes | None: ...

class WriterThread(Generic[_Token]):
    def __init__(self) -> None: ...
    def submit(
        self,
        descriptor: int,
        position: int,
        parts: Sequence[Buffer],
        flags: int,
        is_synced: bool,
        token: _Token,
        /,
    ) -> None: ...
    def take(self) -> list[tuple[_Token, int, bool]]: ...
    def fileno(self) -> int: ...
    def close(self) -> list[tuple[_Token, int, bool]] | None: ...
