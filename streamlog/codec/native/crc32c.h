#ifndef STREAMLOG_CRC32C_H
#define STREAMLOG_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* Fills tables and chooses the instructions. Before anything else, once. */
void crc32c_setup(void);

/* Of what `previous` was computed from, and these bytes. */
uint32_t crc32c(const uint8_t *data, size_t size, uint32_t previous);

/* As crc32c, without special instructions: so that tests reach it on every machine. */
uint32_t crc32c_by_table(const uint8_t *data, size_t size, uint32_t previous);

/* "sse4.2", "arm" or "table". */
const char *crc32c_instructions(void);

#endif
