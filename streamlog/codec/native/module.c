/* The compiled twin of streamlog.codec's plain Python: see kernel.py for what it must offer. */
#include "crc32c.h"
#include "python.h"

Errors errors;

int raise_fault(const Fault *found) {
    PyObject *class = NULL;
    const char *field = NULL;
    switch (found->kind) {
    case FAULT_CORRUPT:
        class = errors.corrupt_message;
        field = "position";
        break;
    case FAULT_MAGIC:
        class = errors.invalid_record;
        field = "position";
        break;
    case FAULT_RECORD:
        class = errors.invalid_record;
        field = "record_index";
        break;
    case FAULT_BATCH:
        class = errors.invalid_record;
        break;
    case FAULT_TIMESTAMP:
        class = errors.invalid_timestamp;
        break;
    case FAULT_TOO_LARGE:
        class = errors.message_too_large;
        break;
    case FAULT_INVALID:
        class = errors.invalid;
        break;
    case FAULT_MEMORY:
    case FAULT_NONE:
        PyErr_NoMemory();
        return -1;
    }
    PyObject *arguments = Py_BuildValue("(s)", found->message);
    PyObject *fields =
        field == NULL ? PyDict_New() : Py_BuildValue("{s:L}", field, (long long)found->number);
    if (arguments != NULL && fields != NULL) {
        PyObject *error = PyObject_Call(class, arguments, fields);
        if (error != NULL) {
            PyErr_SetObject(class, error);
            Py_DECREF(error);
        }
    }
    Py_XDECREF(arguments);
    Py_XDECREF(fields);
    return -1;
}

PyTypeObject *add_type(PyObject *module, PyType_Spec *spec) {
    PyObject *type = PyType_FromSpec(spec);
    if (type == NULL)
        return NULL;
    if (PyModule_AddType(module, (PyTypeObject *)type) < 0) {
        Py_DECREF(type);
        return NULL;
    }
    return (PyTypeObject *)type; /* the reference is the caller's, who keeps it for ever */
}

static int load_errors(void) {
    PyObject *tree = PyImport_ImportModule("streamlog.errors");
    if (tree == NULL)
        return -1;
    errors.corrupt_message = PyObject_GetAttrString(tree, "CorruptMessage");
    errors.invalid_record = PyObject_GetAttrString(tree, "InvalidRecord");
    errors.invalid_timestamp = PyObject_GetAttrString(tree, "InvalidTimestamp");
    errors.message_too_large = PyObject_GetAttrString(tree, "MessageTooLarge");
    errors.invalid = PyObject_GetAttrString(tree, "Invalid");
    Py_DECREF(tree);
    return errors.corrupt_message && errors.invalid_record && errors.invalid_timestamp &&
                   errors.message_too_large && errors.invalid
               ? 0
               : -1;
}

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "streamlog.codec._native",
    .m_doc = "Record batches in C.",
    .m_size = -1,
};

PyMODINIT_FUNC PyInit__native(void) {
    crc32c_setup();
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL)
        return NULL;
    if (load_errors() < 0 || add_memory(module) < 0 || add_hashes(module) < 0 ||
        add_scan(module) < 0 || add_record_writer(module) < 0 || add_record_reader(module) < 0 ||
        add_columns_decoder(module) < 0 || add_columns_encoder(module) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
