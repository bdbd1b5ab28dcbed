/* Columns → uncompressed batches, back to back in one buffer; the twin of pure/columns.py: encode.
   And the partitions of a column of keys. */
#include "batch.h"
#include "crc32c.h"
#include "murmur2.h"
#include "python.h"

typedef struct {
    Py_buffer buffer;
    int is_held;
} Held;

typedef struct {
    int is_there;
    int64_t entries;
    Held validity, offsets, data;
} Column;

typedef struct {
    int64_t count;
    Column keys, values, header_names, header_values;
    int has_headers;
    Held header_lists, timestamps_us, rows;
    int64_t timestamp_ms;
    int64_t batch_bytes;
    int64_t producer_id;
    int16_t producer_epoch;
    int32_t sequence;
    Memory out;
    Memory batches; /* of Batch */
} Encoder;

typedef struct {
    int64_t start, size, count, max_timestamp;
} Batch;

typedef struct {
    const uint8_t *data;
    int64_t size; /* -1: null */
} Entry;

/* -- columns, every access checked */

static inline int32_t i32_at(const Held *held, int64_t index) {
    int32_t number;
    memcpy(&number, (const uint8_t *)held->buffer.buf + 4 * index, 4);
    return number;
}

static inline int64_t i64_at(const Held *held, int64_t index) {
    int64_t number;
    memcpy(&number, (const uint8_t *)held->buffer.buf + 8 * index, 8);
    return number;
}

static inline int column_get(const Column *column, int64_t index, Entry *entry, Fault *found) {
    if (!column->is_there ||
        (column->validity.is_held &&
         !(((const uint8_t *)column->validity.buffer.buf)[index / 8] >> index % 8 & 1))) {
        entry->data = NULL;
        entry->size = -1;
        return 0;
    }
    int64_t start = i32_at(&column->offsets, index), end = i32_at(&column->offsets, index + 1);
    if (UNLIKELY(start < 0 || start > end || end > column->data.buffer.len))
        return fault(
            found, FAULT_INVALID, 0, "entry %lld is bytes %lld to %lld of %lld", (long long)index,
            (long long)start, (long long)end, (long long)column->data.buffer.len);
    entry->data = (const uint8_t *)column->data.buffer.buf + start;
    entry->size = end - start;
    return 0;
}

/* Entries `start` to `end` of the headers of a record. */
static int header_range(
    const Encoder *self, int64_t row, int64_t *start, int64_t *end, Fault *found) {
    *start = i32_at(&self->header_lists, row);
    *end = i32_at(&self->header_lists, row + 1);
    if (*start >= 0 && *start <= *end && *end <= self->header_names.entries)
        return 0;
    return fault(
        found, FAULT_INVALID, 0, "record %lld has headers %lld to %lld of %lld", (long long)row,
        (long long)*start, (long long)*end, (long long)self->header_names.entries);
}

static int header_at(
    const Encoder *self, int64_t index, Entry *name, Entry *value, Fault *found) {
    if (column_get(&self->header_names, index, name, found) < 0 ||
        column_get(&self->header_values, index, value, found) < 0)
        return -1;
    if (name->size >= 0)
        return 0;
    return fault(
        found, FAULT_INVALID, 0, "the name of header %lld is null", (long long)index);
}

/* -- records */

static inline int64_t nullable_bytes(int64_t size) {
    return varint_bytes(size) + (size > 0 ? size : 0);
}

/* Bytes of the headers with their number; their names are UTF-8. -1: fault. */
static int64_t headers_bytes(const Encoder *self, int64_t row, Fault *found) {
    int64_t start, end;
    if (!self->has_headers)
        return 1;
    if (header_range(self, row, &start, &end, found) < 0)
        return -1;
    int64_t total = varint_bytes(end - start);
    for (int64_t i = start; i < end; i++) {
        Entry name, value;
        if (header_at(self, i, &name, &value, found) < 0)
            return -1;
        if (!is_utf8(name.data, name.size))
            return fault(
                found, FAULT_INVALID, 0, "the name of header %lld is not UTF-8", (long long)i);
        total += nullable_bytes(name.size) + nullable_bytes(value.size);
    }
    return total;
}

static inline uint8_t *put_entry(uint8_t *at, const Entry *entry) {
    at = put_varint(at, entry->size);
    if (entry->size > 0) {
        memcpy(at, entry->data, (size_t)entry->size);
        at += entry->size;
    }
    return at;
}

/* Into `room` bytes, which were counted before: counted again, lest the columns were written to. */
static int put_headers(const Encoder *self, int64_t row, uint8_t *at, int64_t room, Fault *found) {
    int64_t start, end;
    if (!self->has_headers) {
        *at = 0;
        return 0;
    }
    if (header_range(self, row, &start, &end, found) < 0)
        return -1;
    room -= varint_bytes(end - start);
    if (room >= 0)
        at = put_varint(at, end - start);
    for (int64_t i = start; i < end && room >= 0; i++) {
        Entry name, value;
        if (header_at(self, i, &name, &value, found) < 0)
            return -1;
        room -= nullable_bytes(name.size) + nullable_bytes(value.size);
        if (room >= 0)
            at = put_entry(put_entry(at, &name), &value);
    }
    return room == 0 ? 0
                     : fault(found, FAULT_INVALID, 0, "columns were written to meanwhile");
}

static int no_memory(Fault *found) { return fault(found, FAULT_MEMORY, 0, "no memory"); }

static int finish_batch(Encoder *self, const Batch *batch, int64_t base_timestamp, Fault *found) {
    uint8_t *at = self->out.data + batch->start;
    memset(at, 0, HEADER_BYTES);
    put_big(at + 8, (uint64_t)(batch->size - LENGTH_END), 4);
    put_big(at + 12, UINT32_MAX, 4);
    at[16] = 2;
    put_big(at + 23, (uint64_t)(batch->count - 1), 4);
    put_big(at + 27, (uint64_t)base_timestamp, 8);
    put_big(at + 35, (uint64_t)batch->max_timestamp, 8);
    put_big(at + 43, (uint64_t)self->producer_id, 8);
    put_big(at + 51, (uint64_t)(uint16_t)self->producer_epoch, 2);
    put_big(at + 53, (uint64_t)(uint32_t)self->sequence, 4);
    put_big(at + 57, (uint64_t)batch->count, 4);
    put_big(at + 17, crc32c(at + CRC_START, (size_t)(batch->size - CRC_START), 0), 4);
    if (self->sequence >= 0)
        self->sequence = (int32_t)(((uint64_t)self->sequence + (uint64_t)batch->count) & INT32_MAX);
    if (memory_reserve(&self->batches, sizeof *batch) < 0)
        return no_memory(found);
    memcpy(self->batches.data + self->batches.used, batch, sizeof *batch);
    self->batches.used += sizeof *batch;
    return 0;
}

static int64_t floor_ms(int64_t microseconds) {
    int64_t milliseconds = microseconds / 1000;
    return microseconds % 1000 < 0 ? milliseconds - 1 : milliseconds;
}

/* About what `total` records will take; right when they are all of the columns', and no headers. */
static int64_t bytes_hint(const Encoder *self, int64_t total) {
    int64_t data = 0, share = total < self->count ? total : self->count;
    if (self->keys.is_there)
        data += self->keys.data.buffer.len;
    if (self->values.is_there)
        data += self->values.data.buffer.len;
    int64_t hint = 24 * total + HEADER_BYTES;
    if (self->count > 0)
        hint += (int64_t)((double)data * (double)share / (double)self->count);
    return hint + hint / self->batch_bytes * HEADER_BYTES;
}

static int encode(Encoder *self, Fault *found) {
    int64_t total = self->rows.is_held ? self->rows.buffer.len / 4 : self->count;
    int64_t base_timestamp = -1;
    Batch batch = {.start = 0, .size = 0, .count = 0, .max_timestamp = -1};
    Memory *out = &self->out;
    if (memory_grow(out, (size_t)bytes_hint(self, total)) < 0)
        return no_memory(found);
    for (int64_t i = 0; i < total; i++) {
        int64_t row = self->rows.is_held ? i32_at(&self->rows, i) : i;
        if (UNLIKELY(row < 0 || row >= self->count))
            return fault(
                found, FAULT_INVALID, 0, "row %lld of %lld was chosen", (long long)row,
                (long long)self->count);
        int64_t stamp = self->timestamps_us.is_held ? floor_ms(i64_at(&self->timestamps_us, row))
                                                    : self->timestamp_ms;
        Entry key, value;
        if (column_get(&self->keys, row, &key, found) < 0 ||
            column_get(&self->values, row, &value, found) < 0)
            return -1;
        int64_t of_headers = headers_bytes(self, row, found);
        if (of_headers < 0)
            return -1;
        if (stamp < 0)
            return fault(
                found, FAULT_TIMESTAMP, 0,
                "timestamp %lld is negative; give milliseconds since 1970", (long long)stamp);
        int64_t fixed = 1 + nullable_bytes(key.size) + nullable_bytes(value.size) + of_headers;
        int64_t delta = batch.count > 0 ? stamp - base_timestamp : 0;
        int64_t body = fixed + varint_bytes(delta) + varint_bytes(batch.count);
        if (batch.count > 0 && batch.size + varint_bytes(body) + body > self->batch_bytes) {
            if (finish_batch(self, &batch, base_timestamp, found) < 0)
                return -1;
            batch.count = 0;
            delta = 0;
            body = fixed + varint_bytes(0) + varint_bytes(0);
        }
        if (batch.count == 0) {
            if (memory_reserve(out, HEADER_BYTES) < 0)
                return no_memory(found);
            batch.start = (int64_t)out->used;
            batch.size = HEADER_BYTES;
            batch.max_timestamp = -1;
            base_timestamp = stamp;
            out->used += HEADER_BYTES;
        }
        int64_t needed = varint_bytes(body) + body;
        if (needed > INT32_MAX - batch.size)
            return fault(
                found, FAULT_TOO_LARGE, 0, "a record of %lld bytes does not fit into a batch",
                (long long)needed);
        if (memory_reserve(out, (size_t)needed) < 0)
            return no_memory(found);
        uint8_t *at = out->data + out->used, *end = at + needed;
        at = put_varint(at, body);
        *at++ = 0;
        at = put_varint(at, delta);
        at = put_varint(at, batch.count);
        at = put_entry(at, &key);
        at = put_entry(at, &value);
        if (put_headers(self, row, at, end - at, found) < 0)
            return -1;
        out->used += (size_t)needed;
        batch.size += needed;
        batch.count++;
        if (stamp > batch.max_timestamp)
            batch.max_timestamp = stamp;
    }
    return batch.count > 0 ? finish_batch(self, &batch, base_timestamp, found) : 0;
}

/* -- Python */

static int held_get(Held *held, PyObject *from) {
    if (from == Py_None)
        return 0;
    if (PyObject_GetBuffer(from, &held->buffer, PyBUF_SIMPLE) < 0)
        return -1;
    held->is_held = 1;
    return 0;
}

static void held_release(Held *held) {
    if (held->is_held)
        PyBuffer_Release(&held->buffer);
    held->is_held = 0;
}

static int too_short(const Held *held, int width, int64_t least) {
    int64_t size = held->buffer.len;
    if (size % width == 0 && size / width >= least)
        return 0;
    PyErr_Format(
        errors.invalid, "%lld bytes do not hold %lld numbers of %d bytes", (long long)size,
        (long long)least, width);
    return -1;
}

/* From (validity or None, offsets, data) or None; `count` < 0: as many entries as offsets say. */
static int column_get_python(Column *column, PyObject *from, int64_t count) {
    PyObject *validity, *offsets, *data;
    if (from == Py_None)
        return 0;
    if (!PyArg_ParseTuple(from, "OOO", &validity, &offsets, &data))
        return -1;
    column->is_there = 1;
    if (held_get(&column->validity, validity) < 0 || held_get(&column->offsets, offsets) < 0 ||
        held_get(&column->data, data) < 0)
        return -1;
    if (!column->offsets.is_held || !column->data.is_held) {
        PyErr_SetString(PyExc_TypeError, "a column has offsets and data");
        return -1;
    }
    column->entries = count >= 0 ? count : column->offsets.buffer.len / 4 - 1;
    if (column->entries < 0)
        column->entries = 0;
    if (too_short(&column->offsets, 4, column->entries + 1) < 0)
        return -1;
    if (column->validity.is_held && 8 * (int64_t)column->validity.buffer.len < column->entries) {
        PyErr_Format(
            errors.invalid, "%lld bytes of validity for %lld entries",
            (long long)column->validity.buffer.len, (long long)column->entries);
        return -1;
    }
    return 0;
}

static void column_release(Column *column) {
    held_release(&column->validity);
    held_release(&column->offsets);
    held_release(&column->data);
}

static int headers_get_python(Encoder *self, PyObject *from) {
    PyObject *lists, *names, *values;
    if (from == Py_None)
        return 0;
    if (!PyArg_ParseTuple(from, "OOO", &lists, &names, &values))
        return -1;
    self->has_headers = 1;
    if (held_get(&self->header_lists, lists) < 0)
        return -1;
    if (!self->header_lists.is_held || names == Py_None || values == Py_None) {
        PyErr_SetString(PyExc_TypeError, "headers have lists, names and values");
        return -1;
    }
    if (too_short(&self->header_lists, 4, self->count + 1) < 0 ||
        column_get_python(&self->header_names, names, -1) < 0)
        return -1;
    return column_get_python(&self->header_values, values, self->header_names.entries);
}

static PyObject *batches_to_python(Encoder *self) {
    size_t count = self->batches.used / sizeof(Batch);
    PyObject *view = memory_to_view(&self->out), *list = PyList_New(0), *result = NULL;
    for (size_t i = 0; list != NULL && i < count; i++) {
        Batch batch;
        memcpy(&batch, self->batches.data + i * sizeof batch, sizeof batch);
        PyObject *item = Py_BuildValue(
            "(LLLL)", (long long)batch.start, (long long)batch.size, (long long)batch.count,
            (long long)batch.max_timestamp);
        if (item == NULL || PyList_Append(list, item) < 0)
            Py_CLEAR(list);
        Py_XDECREF(item);
    }
    if (view != NULL && list != NULL)
        result = PyTuple_Pack(2, view, list);
    Py_XDECREF(view);
    Py_XDECREF(list);
    return result;
}

/* → (buffer, [(start, size, record count, max timestamp)]). */
static PyObject *encode_columns_python(PyObject *module, PyObject *arguments) {
    Encoder self = {.count = 0};
    PyObject *keys, *values, *headers, *timestamps, *rows, *result = NULL;
    long long count, timestamp, batch_bytes, producer_id;
    int epoch, sequence, done = -1;
    Fault found = {.kind = FAULT_NONE};
    (void)module;
    if (!PyArg_ParseTuple(
            arguments, "LLOOOOOLLii", &count, &timestamp, &keys, &values, &headers, &timestamps,
            &rows, &batch_bytes, &producer_id, &epoch, &sequence))
        return NULL;
    if (count < 0 || count >= INT32_MAX || batch_bytes < 1) {
        PyErr_Format(errors.invalid, "%lld records in batches of %lld bytes", count, batch_bytes);
        return NULL;
    }
    self.count = count;
    self.timestamp_ms = timestamp;
    self.batch_bytes = batch_bytes;
    self.producer_id = producer_id;
    self.producer_epoch = (int16_t)epoch;
    self.sequence = sequence;
    if (column_get_python(&self.keys, keys, count) < 0 ||
        column_get_python(&self.values, values, count) < 0 ||
        headers_get_python(&self, headers) < 0 ||
        held_get(&self.timestamps_us, timestamps) < 0 || held_get(&self.rows, rows) < 0)
        goto released;
    if ((self.timestamps_us.is_held && too_short(&self.timestamps_us, 8, count) < 0) ||
        (self.rows.is_held && too_short(&self.rows, 4, 0) < 0))
        goto released;
    Py_BEGIN_ALLOW_THREADS
    done = encode(&self, &found);
    Py_END_ALLOW_THREADS
    if (done < 0)
        raise_fault(&found);
    else
        result = batches_to_python(&self);
released:
    column_release(&self.keys);
    column_release(&self.values);
    column_release(&self.header_names);
    column_release(&self.header_values);
    held_release(&self.header_lists);
    held_release(&self.timestamps_us);
    held_release(&self.rows);
    memory_free(&self.out);
    memory_free(&self.batches);
    return result;
}

static int partitions_into(
    const Column *keys, int64_t count, int64_t partitions, Memory *out, Fault *found) {
    if (memory_reserve(out, 4 * (size_t)count) < 0)
        return no_memory(found);
    for (int64_t i = 0; i < count; i++) {
        Entry key;
        if (column_get(keys, i, &key, found) < 0)
            return -1;
        int32_t partition =
            key.size < 0 ? -1 : (int32_t)partition_for(key.data, (size_t)key.size, partitions);
        memcpy(out->data + 4 * i, &partition, 4);
    }
    out->used = 4 * (size_t)count;
    return 0;
}

/* → int32s; -1 for a null key. */
static PyObject *key_partitions_python(PyObject *module, PyObject *arguments) {
    PyObject *from, *result = NULL;
    long long count, partitions;
    Column keys = {.is_there = 0};
    Memory out = {0};
    Fault found;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OLL", &from, &count, &partitions))
        return NULL;
    if (count < 0 || count >= INT32_MAX || partitions < 1 || partitions > INT32_MAX) {
        PyErr_Format(errors.invalid, "%lld keys over %lld partitions", count, partitions);
        return NULL;
    }
    if (column_get_python(&keys, from, count) == 0) {
        int done;
        Py_BEGIN_ALLOW_THREADS
        done = partitions_into(&keys, count, partitions, &out, &found);
        Py_END_ALLOW_THREADS
        if (done < 0)
            raise_fault(&found);
        else
            result = memory_to_view(&out);
    }
    memory_free(&out);
    column_release(&keys);
    return result;
}

static PyMethodDef functions[] = {
    {"encode_columns", encode_columns_python, METH_VARARGS, NULL},
    {"key_partitions", key_partitions_python, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

int add_columns_encoder(PyObject *module) { return PyModule_AddFunctions(module, functions); }
