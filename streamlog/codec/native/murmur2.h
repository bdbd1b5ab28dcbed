#ifndef STREAMLOG_MURMUR2_H
#define STREAMLOG_MURMUR2_H

#include <stddef.h>
#include <stdint.h>

#define MURMUR2_SEED 0x9747B28Cu

/* Kafka's 32-bit murmur2. */
static inline uint32_t murmur2(const uint8_t *data, size_t size) {
    const uint32_t m = 0x5BD1E995u;
    uint32_t hash = MURMUR2_SEED ^ (uint32_t)size;
    for (; size >= 4; data += 4, size -= 4) {
        uint32_t k = (uint32_t)data[0] | (uint32_t)data[1] << 8 | (uint32_t)data[2] << 16 |
                     (uint32_t)data[3] << 24;
        k *= m;
        k ^= k >> 24;
        hash = hash * m ^ k * m;
    }
    if (size > 2)
        hash ^= (uint32_t)data[2] << 16;
    if (size > 1)
        hash ^= (uint32_t)data[1] << 8;
    if (size > 0)
        hash = (hash ^ data[0]) * m;
    hash = (hash ^ hash >> 13) * m;
    return hash ^ hash >> 15;
}

/* Kafka's toPositive(murmur2(key)) % partitions. */
static inline int64_t partition_for(const uint8_t *key, size_t size, int64_t partitions) {
    return (int64_t)(murmur2(key, size) & 0x7FFFFFFFu) % partitions;
}

#endif
