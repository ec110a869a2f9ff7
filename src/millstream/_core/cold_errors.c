/* Exceptions about cold entries, whose classes are in millstream/engine/cold.py. */
#include "extent.h"

int refuse_cold(const char *what)
{
    PyErr_SetString(PyExc_ValueError, what);
    return -1;
}

PyObject *cold_class(const char *name)
{
    PyObject *module = PyImport_ImportModule("millstream.engine.cold");
    PyObject *found = module == NULL ? NULL : PyObject_GetAttrString(module, name);
    Py_XDECREF(module);
    return found;
}

int cold_raise_miss(PyObject *ranges, PyObject *ahead)
{
    PyObject *type = ranges == NULL ? NULL : cold_class("ColdMiss");
    PyObject *miss = type == NULL ? NULL : PyObject_CallFunctionObjArgs(type, ranges, ahead, NULL);
    if (miss != NULL)
        PyErr_SetObject(type, miss);
    Py_XDECREF(miss);
    Py_XDECREF(type);
    Py_XDECREF(ranges);
    return -1;
}

/* The exception of a class, which is cleared; NULL with any other exception */
static PyObject *take(const char *name)
{
    PyObject *error = take_error(), *type = cold_class(name);
    if (type == NULL)
        PyErr_Clear();
    if (type == NULL || !PyObject_TypeCheck(error, (PyTypeObject *)type)) {
        PyErr_SetObject((PyObject *)Py_TYPE(error), error);
        Py_CLEAR(error);
    }
    Py_XDECREF(type);
    return error;
}

PyObject *cold_take_miss(void)
{
    PyObject *miss = take("ColdMiss"), *ranges = miss == NULL ? NULL : PyObject_GetAttrString(miss, "ranges");
    Py_XDECREF(miss);
    return ranges;
}

int cold_clear_damage(void)
{
    PyObject *damage = take("ColdDamage");
    Py_XDECREF(damage);
    return damage != NULL;
}
