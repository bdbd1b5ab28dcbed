/* A run of batches → columns; the twin of pure/columns.py: decode.

   step() goes on until the columns are full, the run ends, or a compressed batch comes up, whose
   records the caller decompresses and supplies. All of it without the interpreter's lock. */
#include "batch.h"
#include "python.h"

#define HEADER_CHARGE_BYTES 8

typedef struct {
    Memory validity; /* used where there is a null */
    Memory offsets;
    Memory data;
    int has_null;
} Binary;

typedef struct {
    int64_t count;
    int64_t bytes;
    Memory offsets;
    Memory timestamps;
    Memory types;
    Binary keys;
    Binary values;
    Memory header_lists;
    int64_t header_entries;
    Binary header_names;
    Binary header_values;
} Rows;

enum { DONE = 0, FULL = 1, COMPRESSED = 2, FAILED = -1 };

typedef struct {
    PyObject_HEAD
    Py_buffer data;
    Py_buffer bases; /* int64s; len 0 and no object: each batch's own */
    Py_buffer supplied;
    int has_data, has_bases, has_supplied;
    int is_busy;
    int want_keys, want_values, want_headers, verify_crc;
    int64_t start, end, rows_max, bytes_max;
    int64_t position; /* of the next batch, or of the compressed one */
    int64_t index;
    int64_t compressed_bytes; /* of the batch at `position`; 0: not waiting */
    int in_batch;
    RecordCursor cursor;
    Rows rows;
} Decoder;

static void binary_free(Binary *binary) {
    memory_free(&binary->validity);
    memory_free(&binary->offsets);
    memory_free(&binary->data);
    binary->has_null = 0;
}

static void rows_free(Rows *rows) {
    memory_free(&rows->offsets);
    memory_free(&rows->timestamps);
    memory_free(&rows->types);
    binary_free(&rows->keys);
    binary_free(&rows->values);
    memory_free(&rows->header_lists);
    binary_free(&rows->header_names);
    binary_free(&rows->header_values);
    rows->count = rows->bytes = rows->header_entries = 0;
}

/* -- rows: room is reserved before; these cannot fail */

static inline void put_i64(Memory *memory, int64_t number) {
    memcpy(memory->data + memory->used, &number, 8);
    memory->used += 8;
}

static inline void put_i32(Memory *memory, int32_t number) {
    memcpy(memory->data + memory->used, &number, 4);
    memory->used += 4;
}

static int binary_reserve(Binary *binary, size_t entries, size_t bytes) {
    if (memory_reserve(&binary->offsets, 4 * (entries + 1)) < 0)
        return -1;
    if (binary->offsets.used == 0)
        put_i32(&binary->offsets, 0);
    return memory_reserve(&binary->data, bytes);
}

/* The bits of `before` entries that were not null, and room for one more. */
static int binary_note(Binary *binary, int64_t before, int is_null) {
    Memory *bits = &binary->validity;
    if (!binary->has_null) {
        if (LIKELY(!is_null))
            return 0;
        size_t whole = (size_t)(before / 8);
        if (memory_reserve(bits, whole + 1) < 0)
            return -1;
        memset(bits->data, 0xFF, whole);
        bits->data[whole] = (uint8_t)((1u << before % 8) - 1);
        bits->used = whole + 1;
        binary->has_null = 1;
        return 0;
    }
    if (before % 8 == 0) {
        if (bits->used == (size_t)(before / 8)) {
            if (memory_reserve(bits, 1) < 0)
                return -1;
            bits->data[bits->used++] = 0;
        }
    }
    if (!is_null)
        bits->data[before / 8] |= (uint8_t)(1u << before % 8);
    return 0;
}

/* Room for the entry and its bytes was reserved. */
static inline int binary_put(Binary *binary, int64_t before, const uint8_t *data, int64_t size) {
    if (UNLIKELY(binary_note(binary, before, size < 0) < 0))
        return -1;
    if (size > 0) {
        memcpy(binary->data.data + binary->data.used, data, (size_t)size);
        binary->data.used += (size_t)size;
    }
    put_i32(&binary->offsets, (int32_t)binary->data.used);
    return 0;
}

/* Bytes that the headers add, each name checked. -1: fault. */
static int64_t headers_charge(const Decoder *self, const RecordFacts *record, Fault *found) {
    const uint8_t *at = record->headers;
    int64_t total = 0;
    for (int64_t i = 0; i < record->header_count; i++) {
        HeaderFacts header;
        if (!read_header(&at, record->end, &header) ||
            !is_utf8(header.name, header.name_bytes)) {
            int index = self->cursor.index - 1;
            return fault(
                found, FAULT_RECORD, index,
                "record %d of the batch cannot be parsed: a header's name is not UTF-8", index);
        }
        total += HEADER_CHARGE_BYTES + header.name_bytes;
        if (header.value_bytes > 0)
            total += header.value_bytes;
    }
    return total;
}

static int no_memory(Fault *found) { return fault(found, FAULT_MEMORY, 0, "no memory"); }

static int put_headers(Rows *rows, const RecordFacts *record, int64_t charge, Fault *found) {
    const uint8_t *at = record->headers;
    size_t count = (size_t)record->header_count;
    if (count > 0 && (binary_reserve(&rows->header_names, count, (size_t)charge) < 0 ||
                      binary_reserve(&rows->header_values, count, (size_t)charge) < 0))
        return no_memory(found);
    for (size_t i = 0; i < count; i++) {
        HeaderFacts header;
        /* Sizes are compared again: whoever owns the buffer may have written to it. */
        if (!read_header(&at, record->end, &header) ||
            header.name_bytes + (header.value_bytes > 0 ? header.value_bytes : 0) > charge)
            return fault(
                found, FAULT_RECORD, 0, "the records were written to while they were read");
        charge -= header.name_bytes + (header.value_bytes > 0 ? header.value_bytes : 0);
        if (binary_put(&rows->header_names, rows->header_entries, header.name, header.name_bytes) <
                0 ||
            binary_put(
                &rows->header_values, rows->header_entries, header.value, header.value_bytes) < 0)
            return no_memory(found);
        rows->header_entries++;
    }
    put_i32(&rows->header_lists, (int32_t)rows->header_entries);
    return 0;
}

static int64_t clamped_us(int64_t milliseconds) {
    if (milliseconds > INT64_MAX / 1000)
        return INT64_MAX;
    if (milliseconds < INT64_MIN / 1000)
        return INT64_MIN;
    return milliseconds * 1000;
}

static int
rows_add(Decoder *self, const RecordFacts *record, int64_t headers_charge, Fault *found) {
    Rows *rows = &self->rows;
    put_i64(&rows->offsets, self->cursor.batch.base_offset + record->offset_delta);
    put_i64(&rows->timestamps, clamped_us(record->timestamp));
    put_i32(&rows->types, self->cursor.batch.is_append_time);
    if (self->want_keys &&
        binary_put(&rows->keys, rows->count, record->key, record->key_bytes) < 0)
        return no_memory(found);
    if (self->want_values &&
        binary_put(&rows->values, rows->count, record->value, record->value_bytes) < 0)
        return no_memory(found);
    if (self->want_headers && put_headers(rows, record, headers_charge, found) < 0)
        return -1;
    rows->count++;
    return 0;
}

/* Room for all that is left of the batch, or for what the columns may still take. */
static int rows_reserve(Decoder *self, Fault *found) {
    Rows *rows = &self->rows;
    int64_t left = self->cursor.batch.count - self->cursor.index;
    int64_t room = self->rows_max - rows->count;
    size_t count = (size_t)(left < room ? left : room);
    size_t bytes = (size_t)(self->cursor.end - self->cursor.position);
    if (memory_reserve(&rows->offsets, 8 * count) < 0 ||
        memory_reserve(&rows->timestamps, 8 * count) < 0 ||
        memory_reserve(&rows->types, 4 * count) < 0)
        return no_memory(found);
    if (self->want_keys && binary_reserve(&rows->keys, count, bytes) < 0)
        return no_memory(found);
    if (self->want_values) {
        /* Most of what is left of the run will be values. Pages that stay unused cost nothing. */
        int64_t rest = self->data.len - self->position;
        if (rows->values.data.data == NULL && !self->has_supplied) {
            int64_t hint = (rest < self->bytes_max ? rest : self->bytes_max) + (int64_t)bytes;
            if (memory_grow(&rows->values.data, (size_t)hint) < 0)
                return no_memory(found);
        }
        if (binary_reserve(&rows->values, count, bytes) < 0)
            return no_memory(found);
    }
    if (self->want_headers) {
        if (memory_reserve(&rows->header_lists, 4 * (count + 1)) < 0 ||
            binary_reserve(&rows->header_names, 0, 0) < 0 ||
            binary_reserve(&rows->header_values, 0, 0) < 0)
            return no_memory(found);
        if (rows->header_lists.used == 0)
            put_i32(&rows->header_lists, 0);
    }
    return 0;
}

/* -- batches */

static void begin_records(Decoder *self, const uint8_t *records, int64_t size) {
    self->cursor.position = records;
    self->cursor.end = records + size;
    self->cursor.index = 0;
    self->cursor.last_delta = -1;
    self->in_batch = 1;
}

/* Reads records until the batch ends or the columns are full. */
static int read_records(Decoder *self, Fault *found) {
    RecordCursor *cursor = &self->cursor;
    Rows *rows = &self->rows;
    if (rows_reserve(self, found) < 0)
        return FAILED;
    while (cursor->index < cursor->batch.count) {
        RecordFacts record;
        const uint8_t *position = cursor->position;
        int64_t last_delta = cursor->last_delta;
        int64_t charge = 0, of_headers = 0;
        if (cursor_next(cursor, &record, found) < 0)
            return FAILED;
        if (self->want_headers && record.header_count > 0) {
            of_headers = headers_charge(self, &record, found);
            if (of_headers < 0)
                return FAILED;
        }
        int64_t offset = cursor->batch.base_offset + record.offset_delta;
        if (offset < self->start || offset >= self->end)
            continue;
        if (self->want_keys && record.key_bytes > 0)
            charge += record.key_bytes;
        if (self->want_values && record.value_bytes > 0)
            charge += record.value_bytes;
        charge += of_headers;
        if (rows->count > 0 &&
            (rows->count == self->rows_max || charge > self->bytes_max - rows->bytes)) {
            cursor->position = position;
            cursor->last_delta = last_delta;
            cursor->index--;
            return FULL;
        }
        rows->bytes += charge;
        if (rows_add(self, &record, of_headers, found) < 0)
            return FAILED;
    }
    self->in_batch = 0;
    return cursor_finish(cursor, found) < 0 ? FAILED : DONE;
}

/* Looks at the header of the next batch; DONE: its records are to be read or passed over. */
static int open_batch(Decoder *self, Fault *found) {
    const uint8_t *data = self->data.buf, *at = data + self->position;
    int64_t size = batch_size(data, self->data.len, self->position, found);
    if (size < 0)
        return FAILED;
    BatchMetadata *batch = &self->cursor.batch;
    *batch = batch_metadata(at);
    if (self->has_bases) {
        if (self->index >= self->bases.len / 8)
            return fault(
                found, FAULT_INVALID, 0,
                "%lld base offsets were given for more batches than that",
                (long long)(self->bases.len / 8));
        memcpy(&batch->base_offset, (const uint8_t *)self->bases.buf + 8 * self->index, 8);
    }
    if (self->verify_crc && batch_check_crc(data, self->position, size, found) < 0)
        return FAILED;
    if (batch_check_span(batch, found) < 0)
        return FAILED;
    int is_outside = (at[22] & CONTROL) || batch->base_offset >= self->end ||
                     batch_is_before(batch, self->start);
    if (!is_outside) {
        if (at[22] & CODEC_MASK) {
            self->compressed_bytes = size;
            return COMPRESSED;
        }
        if (batch_check_room(batch, size - HEADER_BYTES, found) < 0)
            return FAILED;
        begin_records(self, at + HEADER_BYTES, size - HEADER_BYTES);
    }
    self->position += size;
    self->index++;
    return DONE;
}

static int run(Decoder *self, Fault *found) {
    for (;;) {
        if (self->in_batch) {
            int result = read_records(self, found);
            if (result != DONE)
                return result;
        }
        if (self->position >= self->data.len)
            break;
        int result = open_batch(self, found);
        if (result != DONE)
            return result;
    }
    if (self->has_bases && self->index != self->bases.len / 8)
        return fault(
            found, FAULT_INVALID, 0, "%lld base offsets were given for %lld batches",
            (long long)(self->bases.len / 8), (long long)self->index);
    return DONE;
}

/* -- Python */

static int is_free(Decoder *self) {
    if (!self->is_busy)
        return 1;
    PyErr_SetString(PyExc_RuntimeError, "another thread is at work in this decoder");
    return 0;
}

static void release_supplied(Decoder *self) {
    if (self->has_supplied && !self->in_batch) {
        PyBuffer_Release(&self->supplied);
        self->has_supplied = 0;
    }
}

static PyObject *decoder_step(PyObject *object, PyObject *unused) {
    Decoder *self = (Decoder *)object;
    Fault found = {.kind = FAULT_NONE};
    int result;
    (void)unused;
    if (!is_free(self))
        return NULL;
    if (self->compressed_bytes > 0) {
        PyErr_SetString(PyExc_RuntimeError, "the records of a compressed batch are to be supplied");
        return NULL;
    }
    self->is_busy = 1;
    Py_BEGIN_ALLOW_THREADS
    result = run(self, &found);
    Py_END_ALLOW_THREADS
    self->is_busy = 0;
    if (result == FAILED) {
        self->in_batch = 0;
        self->position = self->data.len;
        raise_fault(&found);
        return NULL;
    }
    release_supplied(self);
    if (result == COMPRESSED) {
        const uint8_t *at = (const uint8_t *)self->data.buf + self->position;
        return Py_BuildValue(
            "(iiLL)", result, at[22] & CODEC_MASK, (long long)(self->position + HEADER_BYTES),
            (long long)(self->position + self->compressed_bytes));
    }
    return Py_BuildValue("(iiLL)", result, 0, 0LL, 0LL);
}

static PyObject *decoder_supply(PyObject *object, PyObject *records) {
    Decoder *self = (Decoder *)object;
    Fault found;
    if (!is_free(self))
        return NULL;
    if (self->compressed_bytes == 0) {
        PyErr_SetString(PyExc_RuntimeError, "no compressed batch waits");
        return NULL;
    }
    if (PyObject_GetBuffer(records, &self->supplied, PyBUF_SIMPLE) < 0)
        return NULL;
    if (self->supplied.len > INT32_MAX) {
        PyBuffer_Release(&self->supplied);
        PyErr_SetString(PyExc_ValueError, "records of 2 GiB and more");
        return NULL;
    }
    self->has_supplied = 1;
    self->position += self->compressed_bytes;
    self->compressed_bytes = 0;
    self->index++;
    if (batch_check_room(&self->cursor.batch, self->supplied.len, &found) < 0) {
        release_supplied(self);
        self->position = self->data.len;
        raise_fault(&found);
        return NULL;
    }
    begin_records(self, self->supplied.buf, self->supplied.len);
    Py_RETURN_NONE;
}

static PyObject *binary_to_python(Binary *binary) {
    PyObject *validity = Py_None, *offsets = NULL, *data = NULL, *column = NULL;
    if (binary->has_null)
        validity = memory_to_view(&binary->validity);
    else
        Py_INCREF(Py_None);
    if (validity != NULL)
        offsets = memory_to_view(&binary->offsets);
    if (offsets != NULL)
        data = memory_to_view(&binary->data);
    if (data != NULL)
        column = PyTuple_Pack(3, validity, offsets, data);
    Py_XDECREF(validity);
    Py_XDECREF(offsets);
    Py_XDECREF(data);
    return column;
}

static PyObject *wanted_binary(Binary *binary, int is_wanted) {
    if (is_wanted)
        return binary_to_python(binary);
    Py_INCREF(Py_None);
    return Py_None;
}

static PyObject *headers_to_python(Rows *rows, int is_wanted) {
    if (!is_wanted) {
        Py_INCREF(Py_None);
        return Py_None;
    }
    PyObject *lists = memory_to_view(&rows->header_lists), *headers = NULL;
    PyObject *names = lists == NULL ? NULL : binary_to_python(&rows->header_names);
    PyObject *values = names == NULL ? NULL : binary_to_python(&rows->header_values);
    if (values != NULL)
        headers = PyTuple_Pack(3, lists, names, values);
    Py_XDECREF(lists);
    Py_XDECREF(names);
    Py_XDECREF(values);
    return headers;
}

/* (count, offsets, timestamps, types, keys, values, headers); None where there is no record. */
static PyObject *decoder_take(PyObject *object, PyObject *unused) {
    Decoder *self = (Decoder *)object;
    Rows *rows = &self->rows;
    PyObject *taken = NULL, *parts[7] = {NULL};
    (void)unused;
    if (!is_free(self))
        return NULL;
    if (rows->count == 0)
        Py_RETURN_NONE;
    parts[0] = PyLong_FromLongLong(rows->count);
    parts[1] = memory_to_view(&rows->offsets);
    parts[2] = memory_to_view(&rows->timestamps);
    parts[3] = memory_to_view(&rows->types);
    parts[4] = wanted_binary(&rows->keys, self->want_keys);
    parts[5] = wanted_binary(&rows->values, self->want_values);
    parts[6] = headers_to_python(rows, self->want_headers);
    rows_free(rows);
    int is_whole = 1;
    for (int i = 0; i < 7; i++)
        is_whole = is_whole && parts[i] != NULL;
    if (is_whole)
        taken = PyTuple_Pack(
            7, parts[0], parts[1], parts[2], parts[3], parts[4], parts[5], parts[6]);
    for (int i = 0; i < 7; i++)
        Py_XDECREF(parts[i]);
    return taken;
}

static PyObject *decoder_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    PyObject *data, *bases;
    long long start, end, rows_max, bytes_max;
    int keys, values, headers, verify;
    (void)keywords;
    if (!PyArg_ParseTuple(
            arguments, "OOLLLLpppp", &data, &bases, &start, &end, &rows_max, &bytes_max, &keys,
            &values, &headers, &verify))
        return NULL;
    if (rows_max < 1 || rows_max > INT32_MAX || bytes_max < 1 || bytes_max > INT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "rows_max and bytes_max are 1 to 2^31 - 1");
        return NULL;
    }
    Decoder *self = (Decoder *)PyType_GenericAlloc(type, 0);
    if (self == NULL)
        return NULL;
    self->start = start;
    self->end = end;
    self->rows_max = rows_max;
    self->bytes_max = bytes_max;
    self->want_keys = keys;
    self->want_values = values;
    self->want_headers = headers;
    self->verify_crc = verify;
    if (PyObject_GetBuffer(data, &self->data, PyBUF_SIMPLE) == 0) {
        self->has_data = 1;
        if (bases == Py_None)
            return (PyObject *)self;
        if (PyObject_GetBuffer(bases, &self->bases, PyBUF_SIMPLE) == 0) {
            self->has_bases = 1;
            return (PyObject *)self;
        }
    }
    Py_DECREF(self);
    return NULL;
}

static void decoder_dealloc(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    Decoder *self = (Decoder *)object;
    rows_free(&self->rows);
    if (self->has_supplied)
        PyBuffer_Release(&self->supplied);
    if (self->has_bases)
        PyBuffer_Release(&self->bases);
    if (self->has_data)
        PyBuffer_Release(&self->data);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

static PyMethodDef decoder_methods[] = {
    {"step", decoder_step, METH_NOARGS, NULL},
    {"supply", decoder_supply, METH_O, NULL},
    {"take", decoder_take, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot decoder_slots[] = {
    {Py_tp_doc, "A run of batches on its way into columns."},
    {Py_tp_new, decoder_new},
    {Py_tp_dealloc, decoder_dealloc},
    {Py_tp_methods, decoder_methods},
    {0, NULL},
};

static PyType_Spec decoder_spec = {
    .name = "streamlog.codec._native.ColumnsDecoder",
    .basicsize = sizeof(Decoder),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = decoder_slots,
};

int add_columns_decoder(PyObject *module) {
    return add_type(module, &decoder_spec) == NULL ? -1 : 0;
}
