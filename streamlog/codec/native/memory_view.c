#include <string.h>

#include "python.h"

typedef struct {
    PyObject_HEAD
    Memory memory;
} MemoryObject;

static PyTypeObject *memory_type;

static void memory_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    memory_free(&((MemoryObject *)self)->memory);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static int memory_get_buffer(PyObject *self, Py_buffer *view, int flags) {
    static uint8_t nothing[1];
    Memory *memory = &((MemoryObject *)self)->memory;
    uint8_t *data = memory->data == NULL ? nothing : memory->data;
    return PyBuffer_FillInfo(view, self, data, (Py_ssize_t)memory->used, 1, flags);
}

static PyType_Slot memory_slots[] = {
    {Py_tp_doc, "Bytes that were made in C; read only."},
    {Py_tp_dealloc, memory_dealloc},
    {Py_bf_getbuffer, memory_get_buffer},
    {0, NULL},
};

static PyType_Spec memory_spec = {
    .name = "streamlog.codec._native.Memory",
    .basicsize = sizeof(MemoryObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = memory_slots,
};

int add_memory(PyObject *module) {
    memory_type = add_type(module, &memory_spec);
    return memory_type == NULL ? -1 : 0;
}

PyObject *memory_to_view(Memory *memory) {
    memory_trim(memory);
    MemoryObject *owner = (MemoryObject *)PyType_GenericAlloc(memory_type, 0);
    if (owner == NULL) {
        memory_free(memory);
        return NULL;
    }
    owner->memory = *memory;
    memset(memory, 0, sizeof *memory);
    PyObject *view = PyMemoryView_FromObject((PyObject *)owner);
    Py_DECREF(owner);
    return view;
}
