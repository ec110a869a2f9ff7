/* The extension module millstream._native: which types and functions it has.
 *
 * Invariant: one is here only when it does all that the class or function does which it stands in for.
 */
#include "dumps.h"

static PyTypeObject *const types[] = {&EntryStoreType, &GroupType, &ConsumerType, &RunnerType, NULL};

/* made by the others only */
static PyTypeObject *const inner[] = {&NodeType, &NodesType, &RowsType, &IndexViewType, &OrderViewType, &RecordWalkType,
                                      NULL};

static PyMethodDef functions[] = {
    {"encode_records", encode_records, METH_VARARGS, NULL},
    {"decode_run", decode_run, METH_VARARGS, NULL},
    {"apply_plain", apply_plain, METH_VARARGS, NULL},
    {"tell_plain", (PyCFunction)(void (*)(void))tell_plain, METH_FASTCALL, NULL},
    {"queue_plain", (PyCFunction)(void (*)(void))queue_plain, METH_FASTCALL, NULL},
#ifdef __linux__
    {"read_ready", read_ready, METH_O, NULL},
    {"send_each", send_each, METH_O, NULL},
#endif
    {"pack_words", pack_words, METH_O, NULL},
    {"pack_entries", pack_entries, METH_O, NULL},
    {"pack_records", pack_records, METH_VARARGS, NULL},
    {"read_entries", read_entries, METH_VARARGS, NULL},
    {"read_records", read_records, METH_VARARGS, NULL},
    {"crc64", crc64, METH_VARARGS, NULL},
    {"decompress", decompress, METH_VARARGS, NULL},
    {"read_listpacks", read_listpacks, METH_O, NULL},
    {"read_pending", read_pending, METH_VARARGS, NULL},
    {"assign_pending", assign_pending, METH_VARARGS, NULL},
    {NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "millstream._native",
    .m_doc = "The engine's hot parts in C; millstream.core chooses between them and the classes they stand in for.",
    .m_size = -1,
    .m_methods = functions,
};

PyMODINIT_FUNC PyInit__native(void)
{
    for (PyTypeObject *const *type = inner; *type != NULL; type++)
        if (PyType_Ready(*type) < 0)
            return NULL;
    if (frames_prepare() < 0 || replay_prepare() < 0)
        return NULL;
    PyObject *found = PyModule_Create(&module);
    if (found == NULL)
        return NULL;
    if (runner_prepare() < 0 || pending_prepare() < 0) {
        Py_DECREF(found);
        return NULL;
    }
    for (PyTypeObject *const *type = types; *type != NULL; type++) {
        if (PyModule_AddType(found, *type) < 0) {
            Py_DECREF(found);
            return NULL;
        }
    }
    if (PyModule_AddStringConstant(found, "MADE_FROM", MADE_FROM) < 0) {
        Py_DECREF(found);
        return NULL;
    }
    return found;
}
