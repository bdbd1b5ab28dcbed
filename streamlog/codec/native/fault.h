/* What went wrong, found without the interpreter's lock and raised with it. */
#ifndef STREAMLOG_FAULT_H
#define STREAMLOG_FAULT_H

#include <stdint.h>

typedef enum {
    FAULT_NONE = 0,
    FAULT_CORRUPT, /* CorruptMessage, with `position` */
    FAULT_MAGIC,   /* InvalidRecord, with `position` */
    FAULT_BATCH,   /* InvalidRecord */
    FAULT_RECORD,  /* InvalidRecord, with `record_index` */
    FAULT_INVALID, /* Invalid: the caller's columns do not fit */
    FAULT_TIMESTAMP, /* InvalidTimestamp */
    FAULT_TOO_LARGE, /* MessageTooLarge */
    FAULT_MEMORY,
} FaultKind;

typedef struct {
    FaultKind kind;
    int64_t number; /* position or record index */
    char message[240];
} Fault;

void fault_set(Fault *fault, FaultKind kind, int64_t number, const char *format, ...)
#if defined(__GNUC__) || defined(__clang__)
    __attribute__((format(printf, 4, 5)))
#endif
    ;

/* -1, so that a caller can return it. */
#define fault(...) (fault_set(__VA_ARGS__), -1)

#endif
