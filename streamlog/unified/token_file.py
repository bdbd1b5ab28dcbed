"""The fencing token of a partition, in a file of its own in the partition's folder.

    at  field   type  meaning
    0   version u8    1; a newer one is refused
    1   length  u8    of the token, 0 to 64; 0: the log has none
    2   token
    …   crc     u32   CRC-32C of all before it

Big-endian. A folder without the file has no token. Kafka passes over the file: its loader looks at
suffixes, of which this name has none (LogLoader.loadSegmentFiles). A damaged one is an error, and
not an absent token, which would let in the writers that were shut out.
"""

from __future__ import annotations

from streamlog.codec.crc import crc32c
from streamlog.errors import Corrupt
from streamlog.log.api.wire import FieldReader, FieldWriter
from streamlog.model.fencing_token import TOKEN_BYTES_MAX

VERSION = 1
TOKEN = "streamlog.token"
CRC_BYTES = 4


def encode_token(token: bytes) -> bytes:
    w = FieldWriter()
    w.u8(VERSION)
    w.u8(len(token))
    w.raw(token)
    w.u32(crc32c(bytes(w.data)))
    return bytes(w.data)


def decode_token(path: str, data: bytes) -> bytes:
    """Errors: Corrupt, UnsupportedVersion."""
    r = FieldReader(data, f"the fencing token in {path}")
    r.check_version(VERSION)
    token = r.raw(r.u8())
    crc = r.u32()
    r.end()
    if crc != crc32c(data[:-CRC_BYTES]) or len(token) > TOKEN_BYTES_MAX:
        raise Corrupt(
            f"the fencing token in {path} is damaged, so nobody can say which writers are shut "
            "out: put the file back from a copy, or start once with --accept-data-loss, which "
            "gives the token up; then set a new one",
            object_key=path,
        )
    return token
