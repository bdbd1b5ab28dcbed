/* What the module's files have for one another. */
#include <Python.h>

/* (descriptor, position, length) -> bytes, or None where memory does not have them all. */
PyObject *read_now(PyObject *module, PyObject *arguments);
