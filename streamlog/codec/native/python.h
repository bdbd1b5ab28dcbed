/* What all files that speak to the interpreter share. */
#ifndef STREAMLOG_PYTHON_H
#define STREAMLOG_PYTHON_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <structmember.h>

#include "fault.h"
#include "memory.h"

/* Classes of streamlog.errors. */
typedef struct {
    PyObject *corrupt_message;
    PyObject *invalid_record;
    PyObject *invalid_timestamp;
    PyObject *message_too_large;
    PyObject *invalid;
} Errors;

extern Errors errors;

/* Sets the exception; returns -1. */
int raise_fault(const Fault *found);

/* A read-only memoryview that owns the bytes; `memory` is empty afterwards, whatever happens. */
PyObject *memory_to_view(Memory *memory);

/* Bytes of one record's field: of a bytes object, or of any other buffer, which is held. */
typedef struct {
    const uint8_t *data;
    Py_ssize_t size; /* -1: None */
    Py_buffer buffer;
    int is_held;
} Field;

/* -1 and TypeError for what is neither a buffer nor None. */
static inline int field_get(Field *field, PyObject *from) {
    field->is_held = 0;
    if (from == Py_None) {
        field->data = NULL;
        field->size = -1;
        return 0;
    }
    if (PyBytes_Check(from)) {
        char *data;
        if (PyBytes_AsStringAndSize(from, &data, &field->size) < 0)
            return -1;
        field->data = (const uint8_t *)data;
        return 0;
    }
    if (PyObject_GetBuffer(from, &field->buffer, PyBUF_SIMPLE) < 0)
        return -1;
    field->is_held = 1;
    field->data = field->buffer.buf;
    field->size = field->buffer.len;
    return 0;
}

static inline void field_release(Field *field) {
    if (field->is_held)
        PyBuffer_Release(&field->buffer);
    field->is_held = 0;
}

/* Of a list, of a tuple or of any sequence: a new reference. */
static inline PyObject *item_at(PyObject *sequence, Py_ssize_t index) {
    if (PyList_CheckExact(sequence)) {
        PyObject *item = PyList_GetItem(sequence, index);
        Py_XINCREF(item);
        return item;
    }
    return PySequence_GetItem(sequence, index);
}

/* Each adds its type or functions to the module; -1: exception. */
int add_memory(PyObject *module);
int add_record_writer(PyObject *module);
int add_record_reader(PyObject *module);
int add_columns_decoder(PyObject *module);
int add_columns_encoder(PyObject *module);
int add_scan(PyObject *module);
int add_hashes(PyObject *module);

PyTypeObject *add_type(PyObject *module, PyType_Spec *spec);

#endif
