/* The extension module millstream._native: its types and functions.
 *
 * Invariant: a type or function is here only if it does everything that its double in Python does.
 */
#include "extent.h"
#include "dumps.h"
#ifdef __GLIBC__
#include <malloc.h>

/* see py_share_heap of millstream.server.process */
static PyObject *share_heap(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(nothing))
{
    return PyBool_FromLong(mallopt(M_ARENA_MAX, 1));
}
#endif

static PyTypeObject *const types[] = {&EntryStoreType, &GroupType, &ConsumerType, &RunnerType, &PackReaderType,
                                      NULL};

/* created only by the other types */
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
    {"stream_memory", stream_memory, METH_NOARGS, NULL},
#ifdef __GLIBC__
    {"share_heap", share_heap, METH_NOARGS, NULL},
#endif
    {"crc64", crc64, METH_VARARGS, NULL},
    {"decompress", decompress, METH_VARARGS, NULL},
    {"read_listpacks", read_listpacks, METH_O, NULL},
    {"read_pending", read_pending, METH_VARARGS, NULL},
    {"assign_pending", assign_pending, METH_VARARGS, NULL},
    {NULL},
};

/* All types and their interned names belong to the process, so there is a single module for one interpreter */
static int prepare(PyObject *module)
{
    if (PyInterpreterState_Get() != PyInterpreterState_Main()) {
        PyErr_SetString(PyExc_ImportError, "millstream._native works in the main interpreter only");
        return -1;
    }
    for (PyTypeObject *const *type = inner; *type != NULL; type++)
        if (PyType_Ready(*type) < 0)
            return -1;
    crc_prepare();
    if (frames_prepare() < 0 || replay_prepare() < 0 || runner_prepare(module) < 0 || pending_prepare() < 0
        || cold_prepare() < 0)
        return -1;
    for (PyTypeObject *const *type = types; *type != NULL; type++)
        if (PyModule_AddType(module, *type) < 0)
            return -1;
    return PyModule_AddStringConstant(module, "MADE_FROM", MADE_FROM);
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, prepare},
    {0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "millstream._native",
    .m_doc = "The engine's hot parts in C; millstream.core chooses between them and the classes they stand in for.",
    .m_methods = functions,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__native(void) { return PyModuleDef_Init(&module); }
