/* Instances of a subclass of tuple, such as a NamedTuple, through the tuple type's own constructor,
   so that nothing is assumed of how an interpreter lays them out. The argument is filled anew for
   each. */
#ifndef STREAMLOG_NAMED_TUPLE_H
#define STREAMLOG_NAMED_TUPLE_H

#include "python.h"

typedef struct {
    PyTypeObject *class;
    newfunc make;
    PyObject *items;     /* borrowed from `arguments`, its one owner */
    PyObject *arguments;
} TupleMaker;

int tuple_maker_open(TupleMaker *maker, PyObject *class, Py_ssize_t size);

void tuple_maker_close(TupleMaker *maker);

/* Takes the reference over; -1 where it is NULL. */
static inline int tuple_maker_set(TupleMaker *maker, Py_ssize_t index, PyObject *item) {
    return item == NULL ? -1 : PyTuple_SetItem(maker->items, index, item);
}

static inline PyObject *tuple_maker_make(TupleMaker *maker) {
    return maker->make(maker->class, maker->arguments, NULL);
}

#endif
