/* CRC-32C and murmur2. */
#include "crc32c.h"
#include "murmur2.h"
#include "python.h"

#define WITHOUT_LOCK_BYTES (64 << 10)

typedef uint32_t (*Crc)(const uint8_t *, size_t, uint32_t);

static PyObject *crc_of(PyObject *const *arguments, Py_ssize_t count, Crc compute) {
    unsigned long previous = 0;
    Py_buffer data;
    if (count < 1 || count > 2) {
        PyErr_SetString(PyExc_TypeError, "crc32c(data, previous=0)");
        return NULL;
    }
    if (count == 2) {
        previous = PyLong_AsUnsignedLong(arguments[1]);
        if (previous == (unsigned long)-1 && PyErr_Occurred())
            return NULL;
    }
    if (PyObject_GetBuffer(arguments[0], &data, PyBUF_SIMPLE) < 0)
        return NULL;
    uint32_t crc;
    if (data.len < WITHOUT_LOCK_BYTES) {
        crc = compute(data.buf, (size_t)data.len, (uint32_t)previous);
    } else {
        Py_BEGIN_ALLOW_THREADS
        crc = compute(data.buf, (size_t)data.len, (uint32_t)previous);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&data);
    return PyLong_FromUnsignedLong(crc);
}

static PyObject *crc32c_python(PyObject *self, PyObject *const *arguments, Py_ssize_t count) {
    (void)self;
    return crc_of(arguments, count, crc32c);
}

static PyObject *
crc32c_by_table_python(PyObject *self, PyObject *const *arguments, Py_ssize_t count) {
    (void)self;
    return crc_of(arguments, count, crc32c_by_table);
}

static PyObject *murmur2_python(PyObject *self, PyObject *key) {
    (void)self;
    Field field;
    if (key == Py_None) {
        PyErr_SetString(PyExc_TypeError, "murmur2 takes bytes");
        return NULL;
    }
    if (field_get(&field, key) < 0)
        return NULL;
    uint32_t hash = murmur2(field.data, (size_t)field.size);
    field_release(&field);
    return PyLong_FromUnsignedLong(hash);
}

static long long partition_count(PyObject *number) {
    long long count = PyLong_AsLongLong(number);
    if (count < 1 && !PyErr_Occurred())
        PyErr_Format(PyExc_ValueError, "%lld partitions", count);
    return PyErr_Occurred() ? -1 : count;
}

static PyObject *
partition_for_key_python(PyObject *self, PyObject *const *arguments, Py_ssize_t count) {
    (void)self;
    Field field;
    if (count != 2 || arguments[0] == Py_None) {
        PyErr_SetString(PyExc_TypeError, "partition_for_key(key, partitions)");
        return NULL;
    }
    long long partitions = partition_count(arguments[1]);
    if (partitions < 0 || field_get(&field, arguments[0]) < 0)
        return NULL;
    int64_t found = partition_for(field.data, (size_t)field.size, partitions);
    field_release(&field);
    return PyLong_FromLongLong(found);
}

static PyObject *
partitions_for_keys_python(PyObject *self, PyObject *const *arguments, Py_ssize_t count) {
    (void)self;
    if (count != 3) {
        PyErr_SetString(PyExc_TypeError, "partitions_for_keys(keys, partitions, otherwise)");
        return NULL;
    }
    long long partitions = partition_count(arguments[1]);
    Py_ssize_t total = partitions < 0 ? -1 : PySequence_Size(arguments[0]);
    PyObject *found = total < 0 ? NULL : PyList_New(total);
    if (found == NULL)
        return NULL;
    for (Py_ssize_t i = 0; i < total; i++) {
        Field field;
        PyObject *partition = NULL, *key = item_at(arguments[0], i);
        if (key != NULL && field_get(&field, key) == 0) {
            if (field.size < 0) {
                partition = arguments[2];
                Py_INCREF(partition);
            } else {
                partition =
                    PyLong_FromLongLong(partition_for(field.data, (size_t)field.size, partitions));
            }
            field_release(&field);
        }
        Py_XDECREF(key);
        if (partition == NULL) {
            Py_DECREF(found);
            return NULL;
        }
        PyList_SetItem(found, i, partition);
    }
    return found;
}

static PyMethodDef functions[] = {
    {"crc32c", (PyCFunction)(void (*)(void))crc32c_python, METH_FASTCALL, NULL},
    {"crc32c_by_table", (PyCFunction)(void (*)(void))crc32c_by_table_python, METH_FASTCALL, NULL},
    {"murmur2", murmur2_python, METH_O, NULL},
    {"partition_for_key", (PyCFunction)(void (*)(void))partition_for_key_python, METH_FASTCALL,
     NULL},
    {"partitions_for_keys", (PyCFunction)(void (*)(void))partitions_for_keys_python, METH_FASTCALL,
     NULL},
    {NULL, NULL, 0, NULL},
};

int add_hashes(PyObject *module) {
    if (PyModule_AddStringConstant(module, "CRC_INSTRUCTIONS", crc32c_instructions()) < 0)
        return -1;
    return PyModule_AddFunctions(module, functions);
}
