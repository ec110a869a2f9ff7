/* The ordered store of a stream's entries, see EntryStore in millstream/engine/streams/entries.py. */
#include "core.h"

struct EntryStore {
    PyObject_HEAD
    Py_ssize_t length;
};

Py_ssize_t store_length(EntryStore *store)
{
    return store->length;
}

PyTypeObject EntryStoreType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "millstream._native.EntryStore",
    .tp_basicsize = sizeof(EntryStore),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = PyType_GenericNew,
};
