"""The limits of one record batch: the widths of its fields in WAL frames and object files, and its
checksum, which becomes part of those of whole frames and blocks.

Append, first batches and staging check their batches here before these get an offset. After that,
a value that no encoder accepts would end the engine with all its streams.
"""

from __future__ import annotations

import math
import struct

from streamlog.codec.crc import crc32c_parts
from streamlog.errors import Invalid
from streamlog.model.append_condition import AppendCondition
from streamlog.model.batch import ATTRIBUTES_BYTES_MAX, AppendContext, CheckedBatch, RecordBatch
from streamlog.model.numbers import checked_int, out_of_range

RECORD_COUNT_MAX = (1 << 32) - 1
TIMESTAMP_MS_MIN, TIMESTAMP_MS_MAX = -(1 << 63), (1 << 63) - 1
CRC_MAX = (1 << 32) - 1

BYTES = (bytes, bytearray)

_try_to_encode = struct.Struct("<IqI").pack
"""Record count, base timestamp and payload CRC, as frames and blocks hold them."""


def refusal_of(batch: RecordBatch) -> Invalid | None:
    """Why the batch cannot be stored, with field, value and range; None where it can."""
    count, crc = batch.record_count, batch.payload_crc32c
    try:
        _try_to_encode(count, batch.base_timestamp_ms, 0 if crc is None else crc)
    except struct.error:
        return _number_refused(batch)
    if count < 1:
        return out_of_range("record_count", count, 1, RECORD_COUNT_MAX)
    attributes = batch.attributes
    if not isinstance(attributes, bytes):
        return Invalid(f"a batch's attributes are bytes, not {type(attributes).__name__}")
    if len(attributes) > ATTRIBUTES_BYTES_MAX:
        return Invalid(
            f"a batch's attributes have {len(attributes)} bytes; at most {ATTRIBUTES_BYTES_MAX}"
        )
    for part in batch.parts:
        if type(part) is not bytes:
            refusal = _part_refused(part)
            if refusal is not None:
                return refusal
    if crc is None or type(batch) is CheckedBatch:
        return None
    found = crc32c_parts(batch.parts)
    if found == crc:
        return None
    return Invalid(f"payload_crc32c is {crc}; that of the batch's parts is {found}")


def _part_refused(part: object) -> Invalid | None:
    if isinstance(part, memoryview):
        # The length of other views is not their size in bytes.
        if part.itemsize == 1 and part.ndim == 1 and part.c_contiguous:
            return None
        return Invalid(
            "a part of a batch is a memoryview that is not a plain run of bytes; pass "
            "view.cast('B'), or bytes(view)"
        )
    if isinstance(part, BYTES):
        return None
    return Invalid(
        f"a part of a batch is bytes, a bytearray or a memoryview, not {type(part).__name__}"
    )


def check_deadline(deadline: float | None) -> None:
    """A deadline that is no number would never come. Errors: Invalid."""
    if deadline is not None and math.isnan(deadline):
        raise Invalid("the deadline is not a number (nan); give seconds, or None to wait")


def check_condition(context: AppendContext) -> None:
    """A value that no stream can have would be a conflict at every try. Errors: Invalid."""
    AppendCondition(context.expected_next_offset, context.fencing_token).check()


def check_tags(tags: dict[str, str], bytes_max: int) -> None:
    """Errors: Invalid."""
    size = 0
    for pair in tags.items():
        for text in pair:
            if not isinstance(text, str):
                raise Invalid(f"a stream's tags are texts, not {text!r}")
            try:
                size += len(text.encode())
            except UnicodeEncodeError:
                raise Invalid(f"a stream's tag {text!r} cannot be written as UTF-8") from None
    if size > bytes_max:
        raise Invalid(f"a stream's tags have {size} bytes; at most {bytes_max}")


def _number_refused(batch: RecordBatch) -> Invalid:
    """Which of the numbers it is."""
    try:
        checked_int("record_count", batch.record_count, 1, RECORD_COUNT_MAX)
        checked_int(
            "base_timestamp_ms", batch.base_timestamp_ms, TIMESTAMP_MS_MIN, TIMESTAMP_MS_MAX
        )
        checked_int("payload_crc32c", batch.payload_crc32c or 0, 0, CRC_MAX)
    except Invalid as error:
        return error
    return Invalid("a batch's record_count, base_timestamp_ms or payload_crc32c is out of range")
