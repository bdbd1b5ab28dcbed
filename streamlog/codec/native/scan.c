/* The headers of a run of batches, the structure of a batch's records, and named tuples made
   without a temporary one. */
#include "named_tuple.h"

#include "batch.h"
#include "python.h"

#define WITHOUT_LOCK_BYTES (64 << 10)

int tuple_maker_open(TupleMaker *maker, PyObject *class, Py_ssize_t size) {
    maker->class = (PyTypeObject *)class;
    maker->items = maker->arguments = NULL;
    if (!PyType_Check(class) || !PyType_IsSubtype(maker->class, &PyTuple_Type)) {
        PyErr_SetString(PyExc_TypeError, "a subclass of tuple is needed");
        return -1;
    }
    maker->make = (newfunc)PyType_GetSlot(&PyTuple_Type, Py_tp_new);
    maker->items = PyTuple_New(size);
    if (maker->items == NULL)
        return -1;
    maker->arguments = PyTuple_New(1);
    if (maker->arguments == NULL) {
        Py_CLEAR(maker->items);
        return -1;
    }
    PyTuple_SetItem(maker->arguments, 0, maker->items); /* which now owns the items */
    for (Py_ssize_t i = 0; i < size; i++) {
        Py_INCREF(Py_None);
        PyTuple_SetItem(maker->items, i, Py_None);
    }
    return 0;
}

void tuple_maker_close(TupleMaker *maker) { Py_CLEAR(maker->arguments); }

static int set_number(TupleMaker *maker, Py_ssize_t index, int64_t number) {
    return tuple_maker_set(maker, index, PyLong_FromLongLong(number));
}

static PyObject *header_of(TupleMaker *maker, const uint8_t *at) {
    if (set_number(maker, 0, get_i64(at)) < 0 || set_number(maker, 1, get_i32(at + 8)) < 0 ||
        set_number(maker, 2, get_i32(at + 12)) < 0 || set_number(maker, 3, (int8_t)at[16]) < 0 ||
        set_number(maker, 4, (uint32_t)get_i32(at + 17)) < 0 ||
        set_number(maker, 5, get_i16(at + 21)) < 0 || set_number(maker, 6, get_i32(at + 23)) < 0 ||
        set_number(maker, 7, get_i64(at + 27)) < 0 || set_number(maker, 8, get_i64(at + 35)) < 0 ||
        set_number(maker, 9, get_i64(at + 43)) < 0 || set_number(maker, 10, get_i16(at + 51)) < 0 ||
        set_number(maker, 11, get_i32(at + 53)) < 0 || set_number(maker, 12, get_i32(at + 57)) < 0)
        return NULL;
    return tuple_maker_make(maker);
}

static PyObject *piece_of(PyObject *view, int64_t start, int64_t end) {
    PyObject *first = PyLong_FromLongLong(start), *last = PyLong_FromLongLong(end), *piece = NULL;
    PyObject *slice = first && last ? PySlice_New(first, last, NULL) : NULL;
    if (slice != NULL)
        piece = PyObject_GetItem(view, slice);
    Py_XDECREF(first);
    Py_XDECREF(last);
    Py_XDECREF(slice);
    return piece;
}

static int check_crc(const uint8_t *data, int64_t position, int64_t size, Fault *found) {
    int result;
    if (size < WITHOUT_LOCK_BYTES)
        return batch_check_crc(data, position, size, found);
    Py_BEGIN_ALLOW_THREADS
    result = batch_check_crc(data, position, size, found);
    Py_END_ALLOW_THREADS
    return result;
}

static int scan_into(
    PyObject *list, PyObject *view, const Py_buffer *data, int verify, TupleMaker *headers,
    TupleMaker *batches) {
    Fault found = {.kind = FAULT_NONE};
    for (int64_t position = 0, size; position < data->len; position += size) {
        size = batch_size(data->buf, data->len, position, &found);
        if (size < 0 || (verify && check_crc(data->buf, position, size, &found) < 0))
            return raise_fault(&found);
        if (tuple_maker_set(
                batches, 0, header_of(headers, (const uint8_t *)data->buf + position)) < 0 ||
            tuple_maker_set(batches, 1, piece_of(view, position, position + size)) < 0)
            return -1;
        PyObject *batch = tuple_maker_make(batches);
        if (batch == NULL)
            return -1;
        int appended = PyList_Append(list, batch);
        Py_DECREF(batch);
        if (appended < 0)
            return -1;
    }
    return 0;
}

static PyObject *scan_python(PyObject *self, PyObject *arguments) {
    PyObject *view, *header_class, *batch_class;
    int verify;
    Py_buffer data;
    TupleMaker headers, batches;
    (void)self;
    if (!PyArg_ParseTuple(arguments, "OpOO", &view, &verify, &header_class, &batch_class))
        return NULL;
    if (!PyMemoryView_Check(view)) {
        PyErr_SetString(PyExc_TypeError, "a memoryview of bytes is needed");
        return NULL;
    }
    if (PyObject_GetBuffer(view, &data, PyBUF_SIMPLE) < 0)
        return NULL;
    PyObject *list = PyList_New(0);
    if (list != NULL && tuple_maker_open(&headers, header_class, 13) == 0) {
        int done = tuple_maker_open(&batches, batch_class, 2);
        if (done == 0) {
            done = scan_into(list, view, &data, verify, &headers, &batches);
            tuple_maker_close(&batches);
        }
        tuple_maker_close(&headers);
        if (done < 0)
            Py_CLEAR(list);
    } else {
        Py_CLEAR(list);
    }
    PyBuffer_Release(&data);
    return list;
}

static int check_names(const RecordFacts *record, int32_t index, Fault *found) {
    const uint8_t *at = record->headers;
    HeaderFacts header;
    for (int64_t i = 0; i < record->header_count; i++)
        if (!read_header(&at, record->end, &header) || !is_utf8(header.name, header.name_bytes))
            return fault(
                found, FAULT_RECORD, index,
                "record %d of the batch cannot be parsed: a header's name is not UTF-8", index);
    return 0;
}

/* Moves past records of the usual form: the next offset, no headers, nothing odd. Stops at any other,
   for `cursor_next` to judge; twice as fast as that, which matters where records are small. */
static void skip_usual(RecordCursor *cursor) {
    const uint8_t *position = cursor->position, *limit = cursor->end;
    int32_t index = cursor->index, count = cursor->batch.count;
    int64_t last_delta = cursor->batch.last_offset_delta, number;
    for (; index < count && index <= last_delta; index++) {
        const uint8_t *at = position, *end;
        if (!read_varint(&at, limit, &number) || number < RECORD_BYTES_MIN - 1 ||
            number > limit - at)
            break;
        end = at + number;
        if (*at++ > 0x7F || !read_varint(&at, end, &number) || !read_varint(&at, end, &number) ||
            number != index || !read_varint(&at, end, &number) || number > end - at)
            break;
        at += number > 0 ? number : 0;
        if (!read_varint(&at, end, &number) || number > end - at)
            break;
        at += number > 0 ? number : 0;
        if (at + 1 != end || *at != 0)
            break;
        position = end;
    }
    if (index > cursor->index)
        cursor->last_delta = index - 1;
    cursor->position = position;
    cursor->index = index;
}

/* Of a whole, uncompressed batch. Its base offset is the server's to set, and not looked at. */
static int check_records(const uint8_t *data, int64_t size, Fault *found) {
    RecordCursor cursor = {
        .batch = batch_metadata(data),
        .position = data + HEADER_BYTES,
        .end = data + size,
        .last_delta = -1,
    };
    RecordFacts record;
    cursor.batch.base_offset = 0;
    if (batch_check_span(&cursor.batch, found) < 0 ||
        batch_check_room(&cursor.batch, size - HEADER_BYTES, found) < 0)
        return -1;
    skip_usual(&cursor);
    while (cursor.index < cursor.batch.count) {
        if (cursor_next(&cursor, &record, found) < 0)
            return -1;
        if (UNLIKELY(record.header_count > 0) &&
            check_names(&record, cursor.index - 1, found) < 0)
            return -1;
    }
    return cursor_finish(&cursor, found);
}

static PyObject *check_records_python(PyObject *self, PyObject *batch) {
    Fault found = {.kind = FAULT_NONE};
    Py_buffer data;
    int result;
    (void)self;
    if (PyObject_GetBuffer(batch, &data, PyBUF_SIMPLE) < 0)
        return NULL;
    if (data.len < HEADER_BYTES) {
        result = fault(&found, FAULT_CORRUPT, 0, "%lld bytes are no batch", (long long)data.len);
    } else if (data.len < WITHOUT_LOCK_BYTES) {
        result = check_records(data.buf, data.len, &found);
    } else {
        Py_BEGIN_ALLOW_THREADS
        result = check_records(data.buf, data.len, &found);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&data);
    if (result < 0) {
        raise_fault(&found);
        return NULL;
    }
    Py_INCREF(Py_None);
    return Py_None;
}

static PyMethodDef functions[] = {
    {"scan", scan_python, METH_VARARGS, NULL},
    {"check_records", check_records_python, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

int add_scan(PyObject *module) { return PyModule_AddFunctions(module, functions); }
