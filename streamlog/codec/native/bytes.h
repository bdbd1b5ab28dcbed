/* Numbers in bytes. Readers are checked against the end, and move past what they read. */
#ifndef STREAMLOG_BYTES_H
#define STREAMLOG_BYTES_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__GNUC__) || defined(__clang__)
#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)
#else
#define LIKELY(x) (x)
#define UNLIKELY(x) (x)
#endif

static inline uint64_t get_big(const uint8_t *at, int bytes) {
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++)
        value = value << 8 | at[i];
    return value;
}

static inline int16_t get_i16(const uint8_t *at) { return (int16_t)get_big(at, 2); }
static inline int32_t get_i32(const uint8_t *at) { return (int32_t)get_big(at, 4); }
static inline int64_t get_i64(const uint8_t *at) { return (int64_t)get_big(at, 8); }

static inline void put_big(uint8_t *at, uint64_t value, int bytes) {
    for (int i = bytes - 1; i >= 0; i--, value >>= 8)
        at[i] = (uint8_t)value;
}

#define VARINT_BYTES_MAX 10

/* 0 where the bytes end first, or where it has more than ten. Zigzag, modulo 2^64. */
static inline int read_varint(const uint8_t **position, const uint8_t *end, int64_t *number) {
    const uint8_t *at = *position;
    uint64_t value;
    if (UNLIKELY(at >= end))
        return 0;
    value = *at++;
    if (UNLIKELY(value >= 0x80)) {
        value &= 0x7F;
        for (int shift = 7;; shift += 7) {
            if (UNLIKELY(shift >= 70 || at >= end))
                return 0;
            uint8_t byte = *at++;
            value |= (uint64_t)(byte & 0x7F) << shift;
            if (byte < 0x80)
                break;
        }
    }
    *number = (int64_t)(value >> 1 ^ (0 - (value & 1)));
    *position = at;
    return 1;
}

static inline uint64_t zigzag(int64_t number) {
    return (uint64_t)number << 1 ^ (number < 0 ? UINT64_MAX : 0);
}

static inline int varint_bytes(int64_t number) {
    uint64_t value = zigzag(number);
    int bytes = 1;
    while (value > 0x7F) {
        value >>= 7;
        bytes++;
    }
    return bytes;
}

/* Writes up to ten bytes; returns what follows them. */
static inline uint8_t *put_varint(uint8_t *at, int64_t number) {
    uint64_t value = zigzag(number);
    while (value > 0x7F) {
        *at++ = (uint8_t)(value | 0x80);
        value >>= 7;
    }
    *at++ = (uint8_t)value;
    return at;
}

#endif
