#include "memory.h"

#include <stdlib.h>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#define LEAST 64
#define LARGE (4u << 20)
#define PAGE 4096u

/* Fresh memory is paid for by the page: in small ones that costs more than filling it. */
static void ask_for_large_pages(uint8_t *data, size_t capacity) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    if (capacity < LARGE)
        return;
    uintptr_t start = ((uintptr_t)data + PAGE - 1) & ~(uintptr_t)(PAGE - 1);
    uintptr_t end = ((uintptr_t)data + capacity) & ~(uintptr_t)(PAGE - 1);
    (void)madvise((void *)start, end - start, MADV_HUGEPAGE); /* a wish: a refusal is no error */
#else
    (void)data;
    (void)capacity;
#endif
}

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
    ask_for_large_pages(data, capacity);
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
