/* Header of a record batch and the fields of a record; the byte tables are in batch.py and
   pure/records.py. */
#ifndef STREAMLOG_BATCH_H
#define STREAMLOG_BATCH_H

#include "bytes.h"
#include "fault.h"

#define HEADER_BYTES 61
#define LENGTH_END 12
#define CRC_START 21
#define CODEC_MASK 0x07
#define LOG_APPEND_TIME 0x08
#define CONTROL 0x20
#define RECORD_BYTES_MIN 7

typedef struct {
    int64_t base_offset;
    int64_t base_timestamp;
    int64_t max_timestamp;
    int32_t last_offset_delta;
    int32_t count;
    int is_append_time;
} BatchMetadata;

/* Size of the batch at `position`, header and all of it inside the buffer. -1: fault. */
int64_t batch_size(const uint8_t *data, int64_t size, int64_t position, Fault *found);

/* -1: fault where the batch at `position`, of known size, fails its CRC. */
int batch_check_crc(const uint8_t *data, int64_t position, int64_t size, Fault *found);

/* -1: fault where so many records do not fit the offsets. */
int batch_check_span(const BatchMetadata *batch, Fault *found);

/* -1: fault where so many records do not fit the bytes. */
int batch_check_room(const BatchMetadata *batch, int64_t size, Fault *found);

static inline BatchMetadata batch_metadata(const uint8_t *header) {
    BatchMetadata metadata = {
        .base_offset = get_i64(header),
        .base_timestamp = get_i64(header + 27),
        .max_timestamp = get_i64(header + 35),
        .last_offset_delta = get_i32(header + 23),
        .count = get_i32(header + 57),
        .is_append_time = (header[22] & LOG_APPEND_TIME) != 0,
    };
    return metadata;
}

/* All its offsets are below `offset`; of a batch that passed batch_check_span, whose last delta is
   -1 where it has none. */
static inline int batch_is_before(const BatchMetadata *batch, int64_t offset) {
    return batch->last_offset_delta < 0
               ? batch->base_offset <= offset
               : batch->base_offset + batch->last_offset_delta < offset;
}

/* Lengths below zero: null. `headers` to `end` were not looked at yet. */
typedef struct {
    const uint8_t *key;
    const uint8_t *value;
    const uint8_t *headers;
    const uint8_t *end;
    int64_t key_bytes;
    int64_t value_bytes;
    int64_t timestamp;
    int64_t offset_delta;
    int64_t header_count;
} RecordFacts;

typedef struct {
    const uint8_t *name;
    const uint8_t *value;
    int64_t name_bytes;
    int64_t value_bytes;
} HeaderFacts;

/* Where records are read: what is left of a batch's. */
typedef struct {
    BatchMetadata batch;
    const uint8_t *position;
    const uint8_t *end;
    int32_t index; /* of the next record */
    int64_t last_delta;
} RecordCursor;

/* Moves to the next record, which there must be. -1: fault. */
int cursor_next(RecordCursor *cursor, RecordFacts *record, Fault *found);

/* -1: fault where bytes follow the last record. */
int cursor_finish(const RecordCursor *cursor, Fault *found);

/* Strict UTF-8: no surrogates, nothing longer than it must be, nothing above U+10FFFF. */
int is_utf8(const uint8_t *at, int64_t size);

static inline int read_nullable(
    const uint8_t **position, const uint8_t *end, const uint8_t **data, int64_t *bytes) {
    int64_t length;
    if (UNLIKELY(!read_varint(position, end, &length)))
        return 0;
    *bytes = length;
    *data = *position;
    if (length > 0) {
        if (UNLIKELY(length > end - *position))
            return 0;
        *position += length;
    }
    return 1;
}

/* 0: the header at `position` cannot be parsed. */
static inline int read_header(const uint8_t **position, const uint8_t *end, HeaderFacts *header) {
    return read_nullable(position, end, &header->name, &header->name_bytes) &&
           header->name_bytes >= 0 &&
           read_nullable(position, end, &header->value, &header->value_bytes);
}

#endif
