"""Which files of the product run while a request is served, and which of them call others."""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from types import CodeType, FrameType

from streamlog.runtime.offload import ThreadOffload

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = tuple(ROOT / folder for folder in ("streamlog", "server", "kvstore"))
_SUSPENDABLE = inspect.CO_COROUTINE | inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR
_OFFLOAD = ThreadOffload.run.__code__


@cache
def product_file(code: CodeType) -> str:
    """The file of a function, as ARCHITECTURE.md writes it; "" where it is not the product's."""
    path = Path(code.co_filename).resolve()
    if not any(path.is_relative_to(folder) for folder in FOLDERS):
        return ""
    return str(path.relative_to(ROOT)).removeprefix("streamlog/")


def _file_of(function: object) -> str:
    while isinstance(function, partial):
        function = function.func
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    return product_file(code) if code is not None else ""


def _is_resumed(frame: FrameType) -> bool:
    """Whether a call event is one of a coroutine or generator that had begun before."""
    code = frame.f_code
    # The event comes with the instruction RESUME, whose operand is 0 at a function's beginning.
    return bool(code.co_flags & _SUSPENDABLE) and code.co_code[frame.f_lasti + 1] != 0


class CallRecorder:
    """Records calls of the product's functions. To resume a coroutine is not to call it.

    `files`: those whose functions ran, by first call. `callers`: counted files that called another
    counted file, by themselves or by way of files that are not counted. A function that is handed
    to a thread (`Offload.run`) is called by whoever hands it over.
    """

    def __init__(self, is_counted: Callable[[str], bool]) -> None:
        self._is_counted = is_counted
        self._is_recording = False
        self.files: dict[str, None] = {}
        self.callers: set[str] = set()

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Sees this thread, and those that are started from now on."""
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Forgets earlier records, and records until the end of the block."""
        self.files, self.callers = {}, set()
        self._is_recording = True
        try:
            yield
        finally:
            self._is_recording = False

    def _profile(self, frame: FrameType, event: str, _: object) -> None:
        if event != "call" or not self._is_recording or _is_resumed(frame):
            return
        code = frame.f_code
        file = product_file(code)
        called = _file_of(frame.f_locals["fn"]) if code is _OFFLOAD else file
        if not called:
            return
        caller = self._caller(frame)
        if caller and caller != called and self._is_counted(called):
            self.files.setdefault(caller)
            self.callers.add(caller)
        self.files.setdefault(file)
        self.files.setdefault(called)

    def _caller(self, frame: FrameType) -> str:
        """The nearest counted file that the call came from; "" where the event loop made it."""
        back = frame.f_back
        while back is not None:
            file = product_file(back.f_code)
            if file and self._is_counted(file):
                return file
            back = back.f_back
        return ""
