"""Reading and writing the log layer's small binary records; big-endian, no I/O."""

from __future__ import annotations

from struct import Struct

from streamlog.errors import Corrupt, UnsupportedVersion
from streamlog.runtime.buffers import Buffer

_U8, _U16, _U32, _U64 = Struct(">B"), Struct(">H"), Struct(">I"), Struct(">Q")
_I16, _I32, _I64 = Struct(">h"), Struct(">i"), Struct(">q")


class FieldWriter:
    """Appends fields to a growing buffer."""

    def __init__(self) -> None:
        self.data = bytearray()

    def u8(self, value: int) -> None:
        self.data += _U8.pack(value)

    def u16(self, value: int) -> None:
        self.data += _U16.pack(value)

    def u32(self, value: int) -> None:
        self.data += _U32.pack(value)

    def u64(self, value: int) -> None:
        self.data += _U64.pack(value)

    def i16(self, value: int) -> None:
        self.data += _I16.pack(value)

    def i32(self, value: int) -> None:
        self.data += _I32.pack(value)

    def i64(self, value: int) -> None:
        self.data += _I64.pack(value)

    def text(self, value: str) -> None:
        """u16 length in bytes, then UTF-8."""
        encoded = value.encode()
        self.u16(len(encoded))
        self.data += encoded

    def raw(self, value: Buffer) -> None:
        self.data += value

    def texts(self, values: dict[str, str]) -> None:
        """u16 count, then key and value of each, by key."""
        self.u16(len(values))
        for key in sorted(values):
            self.text(key)
            self.text(values[key])


class FieldReader:
    """Takes fields from a buffer. A field past its end is Corrupt, as are bytes left at `end()`."""

    def __init__(self, data: Buffer, subject: str) -> None:
        self._data = memoryview(data)
        self._position = 0
        self._subject = subject

    def raw(self, count: int) -> bytes:
        end = self._position + count
        if end > len(self._data):
            raise self.corrupt(f"ends in the middle of a field at byte {self._position}")
        taken = bytes(self._data[self._position : end])
        self._position = end
        return taken

    def _number(self, form: Struct) -> int:
        return int(form.unpack(self.raw(form.size))[0])

    def u8(self) -> int:
        return self._number(_U8)

    def u16(self) -> int:
        return self._number(_U16)

    def u32(self) -> int:
        return self._number(_U32)

    def u64(self) -> int:
        return self._number(_U64)

    def i16(self) -> int:
        return self._number(_I16)

    def i32(self) -> int:
        return self._number(_I32)

    def i64(self) -> int:
        return self._number(_I64)

    def text(self) -> str:
        try:
            return self.raw(self.u16()).decode()
        except UnicodeDecodeError as error:
            raise self.corrupt(f"holds a text that is not UTF-8: {error}") from error

    def texts(self) -> dict[str, str]:
        return {self.text(): self.text() for _ in range(self.u16())}

    @property
    def left(self) -> int:
        return len(self._data) - self._position

    def end(self) -> None:
        if self.left:
            raise self.corrupt(f"has {self.left} bytes too many")

    def check_version(self, supported: int, oldest: int | None = None) -> int:
        """Takes the u8 at the beginning. Errors: UnsupportedVersion, unless it is `supported`, or
        from `oldest` on."""
        version = self.u8()
        if not (supported if oldest is None else oldest) <= version <= supported:
            raise UnsupportedVersion(
                f"{self._subject} has version {version}, this program knows {supported}; "
                "use the program that wrote it, or a newer one",
                found=version,
                supported=supported,
            )
        return version

    def corrupt(self, fault: str) -> Corrupt:
        return Corrupt(f"{self._subject} {fault}")
