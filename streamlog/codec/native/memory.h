/* Bytes that grow, without the interpreter's lock. */
#ifndef STREAMLOG_MEMORY_H
#define STREAMLOG_MEMORY_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
    uint8_t *data;
    size_t used;
    size_t capacity;
} Memory;

/* Room for `capacity` bytes in all; what is used stays. -1 where there is no memory. */
int memory_grow(Memory *memory, size_t capacity);

/* Room for `extra` bytes more; grows by doubling, so that many small calls are cheap. */
static inline int memory_reserve(Memory *memory, size_t extra) {
    if (memory->capacity - memory->used >= extra)
        return 0;
    if (extra > SIZE_MAX / 4 || memory->used > SIZE_MAX / 4)
        return -1;
    size_t wanted = memory->used + extra, doubled = 2 * memory->capacity;
    return memory_grow(memory, wanted > doubled ? wanted : doubled);
}

/* Gives back what is not used, where that is much. */
void memory_trim(Memory *memory);

void memory_free(Memory *memory);

#endif
