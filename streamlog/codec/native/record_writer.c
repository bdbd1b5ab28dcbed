/* Records on their way into one batch; the twin of pure/writer.py. The interpreter's lock is held
   throughout: one call takes one record, or as many as one batch does. */
#include "batch.h"
#include "python.h"

#define BATCH_BYTES_MAX INT32_MAX

typedef struct {
    PyObject_HEAD
    PyObject *data; /* bytearray, `used` bytes of it; NULL once taken */
    uint8_t *bytes; /* of `data` */
    Py_ssize_t used;
    Py_ssize_t capacity;
    Py_ssize_t limit;
    long long base_timestamp;
    long long max_timestamp;
    Py_ssize_t record_count;
} Writer;

static int writer_resize(Writer *self, Py_ssize_t capacity) {
    self->bytes = NULL;
    if (PyByteArray_Resize(self->data, capacity) < 0) {
        Py_CLEAR(self->data);
        return -1;
    }
    self->bytes = (uint8_t *)PyByteArray_AsString(self->data);
    self->capacity = capacity;
    return 0;
}

static int writer_init(PyObject *object, PyObject *arguments, PyObject *keywords) {
    Writer *self = (Writer *)object;
    Py_ssize_t limit;
    static char *names[] = {"size_limit_bytes", NULL};
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "n", names, &limit))
        return -1;
    if (self->data != NULL) {
        PyErr_SetString(PyExc_RuntimeError, "a writer is made once");
        return -1;
    }
    self->data = PyByteArray_FromStringAndSize(NULL, 0);
    if (self->data == NULL)
        return -1;
    self->limit = limit;
    self->base_timestamp = self->max_timestamp = -1;
    self->used = HEADER_BYTES;
    return writer_resize(self, 4096);
}

static void writer_dealloc(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    Py_CLEAR(((Writer *)object)->data);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

static int writer_reserve(Writer *self, Py_ssize_t bytes) {
    if (self->capacity - self->used >= bytes)
        return 0;
    Py_ssize_t capacity = 2 * self->capacity;
    if (capacity > self->limit && self->limit > self->used)
        capacity = self->limit;
    if (capacity < self->used + bytes)
        capacity = self->used + bytes;
    return writer_resize(self, capacity);
}

static int memory_put(Memory *memory, const void *data, Py_ssize_t size) {
    if (memory_reserve(memory, (size_t)size) < 0) {
        PyErr_NoMemory();
        return -1;
    }
    if (size > 0)
        memcpy(memory->data + memory->used, data, (size_t)size);
    memory->used += (size_t)size;
    return 0;
}

static int memory_put_varint(Memory *memory, int64_t number) {
    uint8_t bytes[VARINT_BYTES_MAX];
    return memory_put(memory, bytes, put_varint(bytes, number) - bytes);
}

static int put_header(Memory *memory, PyObject *pair) {
    Py_ssize_t name_bytes;
    Field value;
    int result = -1;
    PyObject *name = PySequence_GetItem(pair, 0), *data = PySequence_GetItem(pair, 1);
    if (name != NULL && data != NULL && field_get(&value, data) == 0) {
        const char *text = PyUnicode_AsUTF8AndSize(name, &name_bytes);
        if (text != NULL && memory_put_varint(memory, name_bytes) == 0 &&
            memory_put(memory, text, name_bytes) == 0 &&
            memory_put_varint(memory, value.size) == 0 &&
            (value.size <= 0 || memory_put(memory, value.data, value.size) == 0))
            result = 0;
        field_release(&value);
    }
    Py_XDECREF(name);
    Py_XDECREF(data);
    return result;
}

/* The headers as they lie in the record, their number first. -1: exception. */
static int put_headers(Memory *memory, PyObject *headers) {
    Py_ssize_t count = PySequence_Size(headers);
    if (count < 0 || memory_put_varint(memory, count) < 0)
        return -1;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *pair = item_at(headers, i);
        if (pair == NULL)
            return -1;
        int result = put_header(memory, pair);
        Py_DECREF(pair);
        if (result < 0)
            return -1;
    }
    return 0;
}

/* 1: went in, 0: full, -1: exception. `headers` NULL: none. */
static int write_fields(
    Writer *self, long long timestamp, const Field *key, const Field *value,
    const Memory *headers) {
    long long base = self->record_count == 0 ? timestamp : self->base_timestamp;
    int64_t header_bytes = headers == NULL ? 1 : (int64_t)headers->used;
    int64_t body = 1 + varint_bytes(timestamp - base) + varint_bytes(self->record_count) +
                   varint_bytes(key->size) + (key->size > 0 ? key->size : 0) +
                   varint_bytes(value->size) + (value->size > 0 ? value->size : 0) + header_bytes;
    int64_t needed = varint_bytes(body) + body;
    if (self->record_count > 0 && needed > self->limit - self->used)
        return 0;
    if (needed > BATCH_BYTES_MAX - self->used) {
        PyErr_Format(
            errors.message_too_large, "a record of %lld bytes does not fit into a batch",
            (long long)needed);
        return -1;
    }
    if (writer_reserve(self, (Py_ssize_t)needed) < 0)
        return -1;
    uint8_t *at = put_varint(self->bytes + self->used, body);
    *at++ = 0;
    at = put_varint(at, timestamp - base);
    at = put_varint(at, self->record_count);
    at = put_varint(at, key->size);
    if (key->size > 0) {
        memcpy(at, key->data, (size_t)key->size);
        at += key->size;
    }
    at = put_varint(at, value->size);
    if (value->size > 0) {
        memcpy(at, value->data, (size_t)value->size);
        at += value->size;
    }
    if (headers == NULL)
        *at = 0;
    else
        memcpy(at, headers->data, headers->used);
    self->used += (Py_ssize_t)needed;
    self->base_timestamp = base;
    if (timestamp > self->max_timestamp)
        self->max_timestamp = timestamp;
    self->record_count++;
    return 1;
}

static int is_open(const Writer *self) {
    if (self->bytes != NULL)
        return 1;
    PyErr_SetString(PyExc_RuntimeError, "the batch was taken out of this writer");
    return 0;
}

static int has_headers(PyObject *headers) {
    if (headers == NULL || headers == Py_None)
        return 0;
    return PyList_CheckExact(headers) ? PyList_Size(headers) > 0 : PyObject_IsTrue(headers);
}

static int write_record(
    Writer *self, long long timestamp, PyObject *key, PyObject *value, PyObject *headers) {
    Field key_field, value_field;
    Memory packed = {0};
    int result = -1, with_headers = has_headers(headers);
    if (with_headers < 0 || field_get(&key_field, key) < 0)
        return -1;
    if (field_get(&value_field, value) == 0) {
        /* Looking at headers may have run any code, even one that takes the batch. */
        if ((!with_headers || put_headers(&packed, headers) == 0) && is_open(self))
            result = write_fields(
                self, timestamp, &key_field, &value_field, with_headers ? &packed : NULL);
        memory_free(&packed);
        field_release(&value_field);
    }
    field_release(&key_field);
    return result;
}

static int is_timestamp(long long timestamp) {
    if (timestamp >= 0)
        return 1;
    if (!PyErr_Occurred())
        PyErr_Format(
            errors.invalid_timestamp,
            "timestamp %lld is negative; give milliseconds since 1970", timestamp);
    return 0;
}

static PyObject *writer_append(PyObject *object, PyObject *const *arguments, Py_ssize_t count) {
    Writer *self = (Writer *)object;
    if (count < 3 || count > 4) {
        PyErr_SetString(PyExc_TypeError, "append(timestamp_ms, key, value, headers=None)");
        return NULL;
    }
    long long timestamp = PyLong_AsLongLong(arguments[0]);
    if (!is_timestamp(timestamp))
        return NULL;
    int result =
        write_record(self, timestamp, arguments[1], arguments[2], count == 4 ? arguments[3] : NULL);
    return result < 0 ? NULL : PyBool_FromLong(result);
}

static int check_timestamps(PyObject *timestamps) {
    Py_ssize_t count = PySequence_Size(timestamps);
    if (count < 0)
        return -1;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *item = item_at(timestamps, i);
        if (item == NULL)
            return -1;
        long long timestamp = PyLong_AsLongLong(item);
        Py_DECREF(item);
        if (!is_timestamp(timestamp))
            return -1;
    }
    return 0;
}

static PyObject *optional_item(PyObject *column, Py_ssize_t index) {
    if (column != Py_None)
        return item_at(column, index);
    Py_INCREF(Py_None);
    return Py_None;
}

/* As write_record, of the columns' entries at `index`. */
static int write_row(
    Writer *self, Py_ssize_t index, long long timestamp, PyObject *timestamps, PyObject *keys,
    PyObject *values, PyObject *headers) {
    int result = -1;
    if (timestamps != Py_None) {
        PyObject *item = item_at(timestamps, index);
        if (item == NULL)
            return -1;
        timestamp = PyLong_AsLongLong(item);
        Py_DECREF(item);
        if (!is_timestamp(timestamp))
            return -1;
    }
    PyObject *key = optional_item(keys, index), *value = item_at(values, index);
    PyObject *pairs = optional_item(headers, index);
    if (key != NULL && value != NULL && pairs != NULL)
        result = write_record(self, timestamp, key, value, pairs);
    Py_XDECREF(key);
    Py_XDECREF(value);
    Py_XDECREF(pairs);
    return result;
}

static PyObject *writer_extend(PyObject *object, PyObject *arguments, PyObject *keywords) {
    Writer *self = (Writer *)object;
    PyObject *values, *keys = Py_None, *timestamps = Py_None, *headers = Py_None;
    long long timestamp = -1;
    Py_ssize_t start = 0;
    static char *names[] = {"values",  "timestamp_ms", "keys", "timestamps_ms",
                            "headers", "start",        NULL};
    if (!PyArg_ParseTupleAndKeywords(
            arguments, keywords, "O|$LOOOn", names, &values, &timestamp, &keys, &timestamps,
            &headers, &start))
        return NULL;
    if (!is_open(self))
        return NULL;
    if (timestamps == Py_None ? !is_timestamp(timestamp) : check_timestamps(timestamps) < 0)
        return NULL;
    Py_ssize_t total = PySequence_Size(values);
    if (total < 0)
        return NULL;
    Py_ssize_t index = start;
    for (; index < total; index++) {
        int result = write_row(self, index, timestamp, timestamps, keys, values, headers);
        if (result < 0)
            return NULL;
        if (result == 0)
            break;
    }
    return PyLong_FromSsize_t(index - start);
}

static PyObject *writer_take(PyObject *object, PyObject *arguments) {
    Writer *self = (Writer *)object;
    long long producer_id;
    int epoch, sequence, attributes;
    if (!PyArg_ParseTuple(arguments, "Liii", &producer_id, &epoch, &sequence, &attributes))
        return NULL;
    if (!is_open(self))
        return NULL;
    uint8_t *at = self->bytes;
    memset(at, 0, HEADER_BYTES);
    put_big(at + 8, (uint64_t)(self->used - LENGTH_END), 4);
    put_big(at + 12, UINT32_MAX, 4);
    at[16] = 2;
    put_big(at + 21, (uint64_t)attributes, 2);
    put_big(at + 23, (uint64_t)(self->record_count - 1), 4);
    put_big(at + 27, (uint64_t)self->base_timestamp, 8);
    put_big(at + 35, (uint64_t)self->max_timestamp, 8);
    put_big(at + 43, (uint64_t)producer_id, 8);
    put_big(at + 51, (uint64_t)epoch, 2);
    put_big(at + 53, (uint64_t)sequence, 4);
    put_big(at + 57, (uint64_t)self->record_count, 4);
    PyObject *data = self->data;
    self->data = NULL;
    self->bytes = NULL;
    if (PyByteArray_Resize(data, self->used) < 0)
        Py_CLEAR(data);
    return data;
}

static PyMethodDef writer_methods[] = {
    {"append", (PyCFunction)(void (*)(void))writer_append, METH_FASTCALL, NULL},
    {"extend", (PyCFunction)(void (*)(void))writer_extend, METH_VARARGS | METH_KEYWORDS, NULL},
    {"take", writer_take, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef writer_members[] = {
    {"record_count", T_PYSSIZET, offsetof(Writer, record_count), READONLY, NULL},
    {"size_bytes", T_PYSSIZET, offsetof(Writer, used), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot writer_slots[] = {
    {Py_tp_doc, "Records on their way into one batch."},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_init, writer_init},
    {Py_tp_dealloc, writer_dealloc},
    {Py_tp_methods, writer_methods},
    {Py_tp_members, writer_members},
    {0, NULL},
};

static PyType_Spec writer_spec = {
    .name = "streamlog.codec._native.RecordWriter",
    .basicsize = sizeof(Writer),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .slots = writer_slots,
};

int add_record_writer(PyObject *module) {
    return add_type(module, &writer_spec) == NULL ? -1 : 0;
}
