/* The records of one batch as Python tuples; the twin of pure/records.py: parse. */
#include "batch.h"
#include "named_tuple.h"
#include "python.h"

typedef struct {
    PyObject_HEAD
    Py_buffer records;
    int is_held;
    int is_over;
    RecordCursor cursor;
} Reader;

static PyTypeObject *reader_type;

static void reader_dealloc(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    Reader *self = (Reader *)object;
    if (self->is_held)
        PyBuffer_Release(&self->records);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

static int item_number(PyObject *header, Py_ssize_t index, long long *number) {
    PyObject *item = PyTuple_GetItem(header, index);
    if (item == NULL)
        return -1;
    *number = PyLong_AsLongLong(item);
    return *number == -1 && PyErr_Occurred() ? -1 : 0;
}

static int metadata_of(PyObject *header, BatchMetadata *metadata) {
    long long attributes, delta, base_timestamp, max_timestamp, count;
    if (!PyTuple_Check(header)) {
        PyErr_SetString(PyExc_TypeError, "a BatchHeader is needed");
        return -1;
    }
    if (item_number(header, 5, &attributes) < 0 || item_number(header, 6, &delta) < 0 ||
        item_number(header, 7, &base_timestamp) < 0 || item_number(header, 8, &max_timestamp) < 0 ||
        item_number(header, 12, &count) < 0)
        return -1;
    if (delta < INT32_MIN || delta > INT32_MAX || count < INT32_MIN || count > INT32_MAX) {
        PyErr_SetString(PyExc_OverflowError, "a count or an offset delta is no int32");
        return -1;
    }
    metadata->last_offset_delta = (int32_t)delta;
    metadata->count = (int32_t)count;
    metadata->base_timestamp = base_timestamp;
    metadata->max_timestamp = max_timestamp;
    metadata->is_append_time = (attributes & LOG_APPEND_TIME) != 0;
    return 0;
}

/* Reader(header, records, base_offset). Errors: InvalidRecord where the counts cannot be. */
static PyObject *reader_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    PyObject *header, *records;
    long long base_offset;
    Fault found;
    (void)keywords;
    if (!PyArg_ParseTuple(arguments, "OOL", &header, &records, &base_offset))
        return NULL;
    Reader *self = (Reader *)PyType_GenericAlloc(type, 0);
    if (self == NULL)
        return NULL;
    RecordCursor *cursor = &self->cursor;
    if (metadata_of(header, &cursor->batch) < 0 ||
        PyObject_GetBuffer(records, &self->records, PyBUF_SIMPLE) < 0)
        goto failed;
    self->is_held = 1;
    cursor->batch.base_offset = base_offset;
    cursor->position = self->records.buf;
    cursor->end = cursor->position + self->records.len;
    cursor->last_delta = -1;
    if (batch_check_span(&cursor->batch, &found) < 0 ||
        batch_check_room(&cursor->batch, self->records.len, &found) < 0) {
        raise_fault(&found);
        goto failed;
    }
    return (PyObject *)self;
failed:
    Py_DECREF(self);
    return NULL;
}

/* 1: `record` is the next one, 0: there is none, -1: exception. After an error there is none. */
static int reader_step(Reader *self, RecordFacts *record) {
    Fault found;
    if (self->is_over)
        return 0;
    if (self->cursor.index < self->cursor.batch.count) {
        if (cursor_next(&self->cursor, record, &found) == 0)
            return 1;
    } else if (cursor_finish(&self->cursor, &found) == 0) {
        self->is_over = 1;
        return 0;
    }
    self->is_over = 1;
    return raise_fault(&found);
}

static PyObject *bytes_or_none(const uint8_t *data, int64_t size) {
    if (size >= 0)
        return PyBytes_FromStringAndSize((const char *)data, (Py_ssize_t)size);
    Py_INCREF(Py_None);
    return Py_None;
}

/* A name that is not UTF-8 becomes the record's InvalidRecord. */
static PyObject *name_of(const Reader *self, const HeaderFacts *header) {
    PyObject *name =
        PyUnicode_DecodeUTF8((const char *)header->name, (Py_ssize_t)header->name_bytes, NULL);
    if (name == NULL && PyErr_ExceptionMatches(PyExc_UnicodeDecodeError)) {
        Fault found;
        int index = self->cursor.index - 1;
        PyErr_Clear();
        fault_set(
            &found, FAULT_RECORD, index,
            "record %d of the batch cannot be parsed: a header's name is not UTF-8", index);
        raise_fault(&found);
    }
    return name;
}

static PyObject *headers_of(const Reader *self, const RecordFacts *record) {
    const uint8_t *at = record->headers;
    PyObject *list = PyList_New(0);
    for (int64_t i = 0; list != NULL && i < record->header_count; i++) {
        HeaderFacts header;
        if (!read_header(&at, record->end, &header)) { /* was checked: the buffer changed */
            PyErr_SetString(PyExc_BufferError, "the records were written to while they were read");
            Py_CLEAR(list);
            break;
        }
        PyObject *name = name_of(self, &header), *pair = NULL;
        PyObject *value = name == NULL ? NULL : bytes_or_none(header.value, header.value_bytes);
        if (value != NULL)
            pair = PyTuple_Pack(2, name, value);
        Py_XDECREF(name);
        Py_XDECREF(value);
        if (pair == NULL || PyList_Append(list, pair) < 0)
            Py_CLEAR(list);
        Py_XDECREF(pair);
    }
    return list;
}

/* Fills five items of a tuple from `first` on, which are not set yet or may be replaced. */
static int
set_fields(const Reader *self, const RecordFacts *record, PyObject *tuple, Py_ssize_t first) {
    PyObject *item =
        PyLong_FromLongLong(self->cursor.batch.base_offset + record->offset_delta);
    if (item == NULL || PyTuple_SetItem(tuple, first, item) < 0)
        return -1;
    item = PyLong_FromLongLong(record->timestamp);
    if (item == NULL || PyTuple_SetItem(tuple, first + 1, item) < 0)
        return -1;
    item = bytes_or_none(record->key, record->key_bytes);
    if (item == NULL || PyTuple_SetItem(tuple, first + 2, item) < 0)
        return -1;
    item = bytes_or_none(record->value, record->value_bytes);
    if (item == NULL || PyTuple_SetItem(tuple, first + 3, item) < 0)
        return -1;
    item = headers_of(self, record);
    return item == NULL ? -1 : PyTuple_SetItem(tuple, first + 4, item);
}

static PyObject *reader_next(PyObject *object) {
    Reader *self = (Reader *)object;
    RecordFacts record;
    if (reader_step(self, &record) <= 0)
        return NULL;
    PyObject *tuple = PyTuple_New(5);
    if (tuple != NULL && set_fields(self, &record, tuple, 0) < 0) {
        self->is_over = 1;
        Py_CLEAR(tuple);
    }
    return tuple;
}

static PyObject *reader_iter(PyObject *object) {
    Py_INCREF(object);
    return object;
}

static PyObject *reader_all(PyObject *object, PyObject *unused) {
    (void)unused;
    PyObject *list = PyList_New(0), *item;
    if (list == NULL)
        return NULL;
    while ((item = reader_next(object)) != NULL) {
        int appended = PyList_Append(list, item);
        Py_DECREF(item);
        if (appended < 0)
            break;
    }
    if (PyErr_Occurred())
        Py_CLEAR(list);
    return list;
}

/* Instances of a NamedTuple of (topic, partition, and the fields of a record). */
static PyObject *reader_list_as(PyObject *object, PyObject *arguments) {
    Reader *self = (Reader *)object;
    PyObject *class, *topic, *partition, *item;
    TupleMaker maker;
    RecordFacts record;
    int step;
    if (!PyArg_ParseTuple(arguments, "OOO", &class, &topic, &partition))
        return NULL;
    if (tuple_maker_open(&maker, class, 7) < 0)
        return NULL;
    Py_INCREF(topic);
    PyTuple_SetItem(maker.items, 0, topic);
    Py_INCREF(partition);
    PyTuple_SetItem(maker.items, 1, partition);
    PyObject *list = PyList_New(0);
    while (list != NULL && (step = reader_step(self, &record)) != 0) {
        item = step < 0 || set_fields(self, &record, maker.items, 2) < 0
                   ? NULL
                   : tuple_maker_make(&maker);
        if (item == NULL || PyList_Append(list, item) < 0)
            Py_CLEAR(list);
        Py_XDECREF(item);
    }
    tuple_maker_close(&maker);
    return list;
}

static PyObject *reader_values(PyObject *object, PyObject *unused) {
    Reader *self = (Reader *)object;
    RecordFacts record;
    int step;
    (void)unused;
    PyObject *list = PyList_New(0);
    while (list != NULL && (step = reader_step(self, &record)) != 0) {
        PyObject *headers = step > 0 && record.header_count ? headers_of(self, &record) : Py_None;
        PyObject *value = step < 0 || headers == NULL
                              ? NULL
                              : bytes_or_none(record.value, record.value_bytes);
        if (headers != Py_None)
            Py_XDECREF(headers);
        if (value == NULL || PyList_Append(list, value) < 0)
            Py_CLEAR(list);
        Py_XDECREF(value);
    }
    return list;
}

static PyMethodDef reader_methods[] = {
    {"all", reader_all, METH_NOARGS, NULL},
    {"list_as", reader_list_as, METH_VARARGS, NULL},
    {"values", reader_values, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot reader_slots[] = {
    {Py_tp_doc, "The records of one batch."},
    {Py_tp_new, reader_new},
    {Py_tp_dealloc, reader_dealloc},
    {Py_tp_iter, reader_iter},
    {Py_tp_iternext, reader_next},
    {Py_tp_methods, reader_methods},
    {0, NULL},
};

static PyType_Spec reader_spec = {
    .name = "streamlog.codec._native.RecordReader",
    .basicsize = sizeof(Reader),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = reader_slots,
};

int add_record_reader(PyObject *module) {
    reader_type = add_type(module, &reader_spec);
    return reader_type == NULL ? -1 : 0;
}
