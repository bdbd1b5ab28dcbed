/* CRC-32C (Castagnoli, reflected). Where the processor has an instruction for it, three runs are
   computed side by side, because each instruction waits for the one before it; the runs are joined
   by tables that advance a CRC over as many zero bytes. Runs are as long as the data lets them be:
   memory that no cache holds is read ahead only while a run goes on, and asked for further ahead
   than the processor does by itself: a batch that another core has written is checked by a quarter
   faster. Elsewhere eight tables take eight bytes at a time. */
#include "crc32c.h"

#include <string.h>

#if (defined(__GNUC__) || defined(__clang__)) && defined(__x86_64__)
#define HARDWARE_X86 1
#define HARDWARE_TARGET __attribute__((target("sse4.2")))
#elif (defined(__GNUC__) || defined(__clang__)) && defined(__aarch64__) && \
    (defined(__linux__) || defined(__APPLE__))
#define HARDWARE_ARM 1
#if defined(__clang__)
#define HARDWARE_TARGET __attribute__((target("crc")))
#else
#define HARDWARE_TARGET __attribute__((target("+crc")))
#endif
#include <arm_acle.h>
#if defined(__linux__)
#include <sys/auxv.h>
#ifndef HWCAP_CRC32
#define HWCAP_CRC32 (1 << 7)
#endif
#endif
#endif

#define POLYNOMIAL 0x82F63B78u
#define RUNS 5
#define AHEAD 2048 /* bytes */
#define LINE 64    /* bytes; every run is whole lines */

static const uint32_t run_bytes[RUNS] = {65536, 40960, 16384, 4096, 256};
static uint32_t byte_tables[8][256];
static uint32_t shift[RUNS][4][256];
static int has_hardware;

/* a(x) * b(x) modulo the polynomial; the coefficient of x^0 is the highest bit. */
static uint32_t multiplied(uint32_t a, uint32_t b) {
    uint32_t product = 0;
    for (uint32_t bit = 1u << 31; bit; bit >>= 1) {
        if (a & bit)
            product ^= b;
        b = b & 1 ? b >> 1 ^ POLYNOMIAL : b >> 1;
    }
    return product;
}

static void fill_shift(uint32_t table[4][256], uint32_t zero_bytes) {
    uint32_t power = 1u << 31, square = 1u << 30;
    for (uint32_t exponent = 8 * zero_bytes; exponent; exponent >>= 1) {
        if (exponent & 1)
            power = multiplied(power, square);
        square = multiplied(square, square);
    }
    for (int at = 0; at < 4; at++)
        for (uint32_t byte = 0; byte < 256; byte++)
            table[at][byte] = multiplied(power, byte << 8 * at);
}

static inline uint32_t shifted(uint32_t table[4][256], uint32_t crc) {
    return table[0][crc & 0xFF] ^ table[1][crc >> 8 & 0xFF] ^ table[2][crc >> 16 & 0xFF] ^
           table[3][crc >> 24];
}

static uint32_t by_table(const uint8_t *data, size_t size, uint32_t crc) {
    for (; size >= 8; data += 8, size -= 8) {
        crc ^= (uint32_t)data[0] | (uint32_t)data[1] << 8 | (uint32_t)data[2] << 16 |
               (uint32_t)data[3] << 24;
        crc = byte_tables[7][crc & 0xFF] ^ byte_tables[6][crc >> 8 & 0xFF] ^
              byte_tables[5][crc >> 16 & 0xFF] ^ byte_tables[4][crc >> 24] ^
              byte_tables[3][data[4]] ^ byte_tables[2][data[5]] ^ byte_tables[1][data[6]] ^
              byte_tables[0][data[7]];
    }
    while (size--)
        crc = crc >> 8 ^ byte_tables[0][(crc ^ *data++) & 0xFF];
    return crc;
}

#ifdef HARDWARE_TARGET

HARDWARE_TARGET static inline uint64_t step(uint64_t crc, const uint8_t *at) {
    uint64_t word;
    memcpy(&word, at, 8);
#ifdef HARDWARE_X86
    return __builtin_ia32_crc32di(crc, word);
#else
    return __crc32cd((uint32_t)crc, word);
#endif
}

HARDWARE_TARGET static inline uint32_t step_byte(uint32_t crc, uint8_t byte) {
#ifdef HARDWARE_X86
    return __builtin_ia32_crc32qi(crc, byte);
#else
    return __crc32cb(crc, byte);
#endif
}

HARDWARE_TARGET static uint32_t by_hardware(const uint8_t *data, size_t size, uint32_t start) {
    uint64_t crc = start;
    for (int kind = 0; kind < RUNS; kind++) {
        const size_t run = run_bytes[kind];
        for (; size >= 3 * run; data += 3 * run, size -= 3 * run) {
            uint64_t second = 0, third = 0;
            for (size_t i = 0; i < run; i += LINE) {
                const uint8_t *at = data + i;
                __builtin_prefetch(at + AHEAD);
                __builtin_prefetch(at + run + AHEAD);
                __builtin_prefetch(at + 2 * run + AHEAD);
                for (const uint8_t *line_end = at + LINE; at < line_end; at += 8) {
                    crc = step(crc, at);
                    second = step(second, at + run);
                    third = step(third, at + 2 * run);
                }
            }
            crc = shifted(shift[kind], (uint32_t)crc) ^ (uint32_t)second;
            crc = shifted(shift[kind], (uint32_t)crc) ^ (uint32_t)third;
        }
    }
    for (; size >= 8; data += 8, size -= 8)
        crc = step(crc, data);
    uint32_t rest = (uint32_t)crc;
    while (size--)
        rest = step_byte(rest, *data++);
    return rest;
}

#endif

void crc32c_setup(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? crc >> 1 ^ POLYNOMIAL : crc >> 1;
        byte_tables[0][byte] = crc;
    }
    for (int table = 1; table < 8; table++)
        for (uint32_t byte = 0; byte < 256; byte++) {
            uint32_t crc = byte_tables[table - 1][byte];
            byte_tables[table][byte] = crc >> 8 ^ byte_tables[0][crc & 0xFF];
        }
    for (int kind = 0; kind < RUNS; kind++)
        fill_shift(shift[kind], run_bytes[kind]);
#if defined(HARDWARE_X86)
    has_hardware = __builtin_cpu_supports("sse4.2");
#elif defined(HARDWARE_ARM) && defined(__linux__)
    has_hardware = (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0;
#elif defined(HARDWARE_ARM)
    has_hardware = 1;
#endif
}

uint32_t crc32c(const uint8_t *data, size_t size, uint32_t previous) {
#ifdef HARDWARE_TARGET
    if (has_hardware)
        return ~by_hardware(data, size, ~previous);
#endif
    return ~by_table(data, size, ~previous);
}

uint32_t crc32c_by_table(const uint8_t *data, size_t size, uint32_t previous) {
    return ~by_table(data, size, ~previous);
}

const char *crc32c_instructions(void) {
#if defined(HARDWARE_X86)
    return has_hardware ? "sse4.2" : "table";
#elif defined(HARDWARE_ARM)
    return has_hardware ? "arm" : "table";
#else
    return "table";
#endif
}
