#include "memory.h"

#include <stdlib.h>

#define LEAST 64

int memory_grow(Memory *memory, size_t capacity) {
    if (capacity <= memory->capacity)
        return 0;
    if (capacity < LEAST)
        capacity = LEAST;
    uint8_t *data = realloc(memory->data, capacity);
    if (data == NULL)
        return -1;
    memory->data = data;
    memory->capacity = capacity;
    return 0;
}

void memory_trim(Memory *memory) {
    if (memory->used == 0 || memory->capacity - memory->used < memory->capacity / 8)
        return;
    uint8_t *data = realloc(memory->data, memory->used);
    if (data == NULL)
        return;
    memory->data = data;
    memory->capacity = memory->used;
}

void memory_free(Memory *memory) {
    free(memory->data);
    memory->data = NULL;
    memory->used = memory->capacity = 0;
}
