#include "batch.h"

#include <stdarg.h>
#include <stdio.h>

#include "crc32c.h"

void fault_set(Fault *found, FaultKind kind, int64_t number, const char *format, ...) {
    va_list arguments;
    found->kind = kind;
    found->number = number;
    va_start(arguments, format);
    vsnprintf(found->message, sizeof found->message, format, arguments);
    va_end(arguments);
}

int64_t batch_size(const uint8_t *data, int64_t size, int64_t position, Fault *found) {
    int64_t left = size - position;
    const uint8_t *at = data + position;
    if (left < CRC_START)
        return fault(
            found, FAULT_CORRUPT, position,
            "%lld bytes at byte %lld are too few for a record batch; the message was cut short",
            (long long)left, (long long)position);
    if (at[16] != 2)
        return fault(
            found, FAULT_MAGIC, position,
            "the record batch at byte %lld has magic %d; only format version 2 is accepted",
            (long long)position, at[16]);
    int64_t whole = (int64_t)get_i32(at + 8) + LENGTH_END;
    if (whole < HEADER_BYTES || whole > left)
        return fault(
            found, FAULT_CORRUPT, position,
            "the record batch at byte %lld says %lld bytes, but %lld are there and %d is the least",
            (long long)position, (long long)whole, (long long)left, HEADER_BYTES);
    return whole;
}

int batch_check_crc(const uint8_t *data, int64_t position, int64_t size, Fault *found) {
    const uint8_t *at = data + position;
    if (crc32c(at + CRC_START, (size_t)(size - CRC_START), 0) == (uint32_t)get_i32(at + 17))
        return 0;
    return fault(
        found, FAULT_CORRUPT, position,
        "the record batch at byte %lld (%lld bytes) fails its CRC; it was damaged on the way: send "
        "it again",
        (long long)position, (long long)size);
}

int batch_check_span(const BatchMetadata *batch, Fault *found) {
    int64_t span = (int64_t)batch->last_offset_delta + 1;
    if (batch->count >= 0 && batch->count <= span && batch->base_offset <= INT64_MAX - span)
        return 0;
    return fault(
        found, FAULT_BATCH, 0,
        "the record batch says %d records in %lld offsets from %lld, which cannot be", batch->count,
        (long long)span, (long long)batch->base_offset);
}

int batch_check_room(const BatchMetadata *batch, int64_t size, Fault *found) {
    if ((int64_t)batch->count * RECORD_BYTES_MIN <= size)
        return 0;
    return fault(
        found, FAULT_BATCH, 0, "the record batch says %d records, which %lld bytes cannot hold",
        batch->count, (long long)size);
}

static int bad_record(const RecordCursor *cursor, Fault *found, const char *reason) {
    return fault(
        found, FAULT_RECORD, cursor->index, "record %d of the batch cannot be parsed: %s",
        cursor->index, reason);
}

int cursor_next(RecordCursor *cursor, RecordFacts *record, Fault *found) {
    const uint8_t *at = cursor->position, *end;
    int64_t size, delta;
    if (!read_varint(&at, cursor->end, &size) || size < 0 || size > cursor->end - at)
        return bad_record(cursor, found, "its length");
    end = at + size;
    if (size == 0 || *at++ > 0x7F)
        return bad_record(cursor, found, "its attributes");
    if (!read_varint(&at, end, &delta) || !read_varint(&at, end, &record->offset_delta))
        return bad_record(cursor, found, "its timestamp or offset");
    if (!read_nullable(&at, end, &record->key, &record->key_bytes))
        return bad_record(cursor, found, "its key");
    if (!read_nullable(&at, end, &record->value, &record->value_bytes))
        return bad_record(cursor, found, "its value");
    if (!read_varint(&at, end, &record->header_count) || record->header_count < 0)
        return bad_record(cursor, found, "its number of headers");
    record->headers = at;
    record->end = end;
    if (LIKELY(record->header_count == 0)) {
        if (at != end)
            return bad_record(cursor, found, "bytes after its last field");
    } else {
        HeaderFacts header;
        for (int64_t i = 0; i < record->header_count; i++)
            if (!read_header(&at, end, &header))
                return bad_record(cursor, found, "its headers");
        if (at != end)
            return bad_record(cursor, found, "bytes after its last header");
    }
    record->timestamp =
        cursor->batch.is_append_time
            ? cursor->batch.max_timestamp
            : (int64_t)((uint64_t)cursor->batch.base_timestamp + (uint64_t)delta);
    if (record->offset_delta <= cursor->last_delta ||
        record->offset_delta > cursor->batch.last_offset_delta)
        return fault(
            found, FAULT_RECORD, cursor->index,
            "the batch spans %lld offsets, but its records do not fit into them in order: record "
            "%d is at %lld after %lld",
            (long long)cursor->batch.last_offset_delta + 1, cursor->index,
            (long long)record->offset_delta, (long long)cursor->last_delta);
    cursor->last_delta = record->offset_delta;
    cursor->position = end;
    cursor->index++;
    return 0;
}

int cursor_finish(const RecordCursor *cursor, Fault *found) {
    if (cursor->position == cursor->end)
        return 0;
    return fault(
        found, FAULT_BATCH, 0, "%lld bytes follow the last of the batch's %d records",
        (long long)(cursor->end - cursor->position), cursor->batch.count);
}

int is_utf8(const uint8_t *at, int64_t size) {
    const uint8_t *end = at + size;
    while (at < end) {
        uint8_t lead = *at++;
        if (lead < 0x80)
            continue;
        int more = lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : 1;
        if (lead < 0xC2 || lead > 0xF4 || end - at < more)
            return 0;
        uint8_t low = 0x80, high = 0xBF;
        if (lead == 0xE0)
            low = 0xA0;
        else if (lead == 0xED)
            high = 0x9F;
        else if (lead == 0xF0)
            low = 0x90;
        else if (lead == 0xF4)
            high = 0x8F;
        if (*at < low || *at > high)
            return 0;
        for (at++; --more > 0; at++)
            if (*at < 0x80 || *at > 0xBF)
                return 0;
    }
    return 1;
}
