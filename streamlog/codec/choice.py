"""Which twin of the codec this process uses: the compiled extension, or plain Python.

STREAMLOG_CODEC: `native` or `pure`; unset: native where it is installed. Both give the same bytes,
values and errors; the plain one is 20 to 50 times slower per record.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING

from streamlog.errors import InvalidConfig

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["IN_USE", "VARIABLE", "description", "load", "native"]

VARIABLE = "STREAMLOG_CODEC"
NEEDED = (
    "CRC_INSTRUCTIONS",
    "ColumnsDecoder",
    "RecordReader",
    "RecordWriter",
    "check_records",
    "crc32c",
    "crc32c_by_table",
    "encode_columns",
    "key_partitions",
    "murmur2",
    "partition_for_key",
    "partitions_for_keys",
    "scan",
)
"""All that this version takes from the extension. One that was compiled from older sources, such as
before a `git pull`, lacks some of it."""


def load(wanted: str) -> ModuleType | None:
    """The extension, or None for the plain twin. Errors: InvalidConfig."""
    if wanted not in ("", "native", "pure"):
        raise InvalidConfig(f"{VARIABLE} = {wanted} is not known; use native or pure, or unset it")
    if wanted == "pure":
        return None
    try:
        return _whole(importlib.import_module("streamlog.codec._native"))
    except ImportError as error:
        if wanted == "native":
            raise InvalidConfig(
                f"{VARIABLE} = native, but the compiled codec cannot be loaded ({error}); install "
                "streamlog-engine where a C compiler is, or from a wheel"
            ) from error
        return None


def _whole(extension: ModuleType) -> ModuleType:
    """The extension, if it belongs to this version. Errors: InvalidConfig."""
    lacking = [name for name in NEEDED if not hasattr(extension, name)]
    if lacking:
        raise InvalidConfig(
            f"the compiled codec {extension.__file__} was built from older sources: it lacks "
            f"{', '.join(lacking)}; build it again (`make setup`, or `pip install -e .`), or set "
            f"{VARIABLE} = pure for the plain one"
        )
    return extension


if TYPE_CHECKING:
    from streamlog.codec import _native as native
else:
    native = load(os.environ.get(VARIABLE, ""))

IN_USE = "pure" if not native else "native"


def description() -> str:
    """For people: the twin, and by what it computes checksums."""
    return f"{IN_USE} codec" + (f" (CRC by {native.CRC_INSTRUCTIONS})" if native else "")
