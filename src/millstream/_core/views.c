/* Ways through a store, as Python sees them: one node, all nodes, entries row by row.
 *
 * Invariants: an object that keeps a place in a store between calls keeps the store too, and its version. It compares
 * the version before it uses the place; within a call nothing changes the store. Making a tuple or a list may start the
 * garbage collector, which may run any code. So none is made between reading a place and using it.
 */
#include "extent.h"

/* ---------------------------------------------------------------- ways */

void walk_begin(Walk *walk, EntryStore *store, Id start, Id end, int backwards)
{
    *walk = (Walk){.store = store, .start = start, .end = end, .ahead = end, .backwards = backwards, .wanted = PY_SSIZE_T_MAX};
    Py_ssize_t index = store_index(store, backwards ? end : start);
    walk->index = backwards ? index + 1 : index - (index >= 0); /* one before the first, in its direction */
    walk->is_cold = (index < 0 || !backwards) && is_cold_id(store, start); /* a tombstone in memory may have its last id */
}

void walk_end(Walk *walk)
{
    PyMem_Free(walk->found);
    walk->found = NULL;
    if (walk->cold != NULL)
        cold_end(walk);
}

static __attribute__((noinline)) int walk_cold(Walk *walk)
{
    return walk->cold == NULL && cold_begin(walk) < 0 ? -1 : cold_next(walk);
}

/* The next node in memory with something of the range; whether there is one */
static int walk_hot(Walk *walk)
{
    for (;;) {
        walk->index += walk->backwards ? -1 : 1;
        if (walk->index < 0 || walk->index >= walk->store->count)
            return 0;
        walk->node = STORE_NODE(walk->store, walk->index);
        if (walk->node->first > walk->end ? !walk->backwards : walk->backwards && walk->node->last < walk->start)
            return 0;
        if (walk->all || (walk->node->live && walk->node->last_live >= walk->start && walk->node->first_live <= walk->end))
            return 1;
    }
}

int walk_node(Walk *walk)
{
    int found = walk->is_cold ? walk_cold(walk) : walk_hot(walk);
    if (found == 0 && walk->is_cold != walk->backwards && is_cold(walk->store)) { /* over the boundary */
        walk->is_cold = walk->backwards;
        found = walk->is_cold ? walk_cold(walk) : walk_hot(walk);
    }
    if (found > 0) {
        walk->at = walk->node->data + walk->node->low;
        walk->before = walk->node->before_low;
        return 1;
    }
    walk->node = NULL;
    walk->index = walk->backwards ? 0 : walk->store->count; /* stays at the end */
    walk->is_cold = 0;
    walk->end = 0, walk->start = ID_MAX;
    return found;
}

/* The next live entry of this node in the range; whether there is one. In line, as it is called for each entry */
static inline __attribute__((always_inline)) int walk_on(Walk *walk, Entry *entry)
{
    Node *node = walk->node;
    while (walk->at < node->data + node->size) {
        entry_read(walk->at, walk->before, entry);
        walk->at = entry->end;
        walk->before = entry->id;
        if (entry->id > walk->end)
            return 0;
        if (!entry->dead && entry->id >= walk->start)
            return 1;
    }
    return 0;
}

static int walk_gather(Walk *walk)
{
    Entry entry;
    for (walk->left = 0; walk_on(walk, &entry); walk->left++) {
        if (walk->left == walk->room) {
            Py_ssize_t room = walk->room ? 2 * walk->room : 128;
            Entry *found = PyMem_Realloc(walk->found, (size_t)room * sizeof(Entry));
            if (found == NULL) {
                PyErr_NoMemory();
                return -1;
            }
            walk->found = found;
            walk->room = room;
        }
        walk->found[walk->left] = entry;
    }
    return 0;
}

/* The same, of the next nodes */
static __attribute__((noinline)) int walk_far(Walk *walk, Entry *entry)
{
    int found = walk->start <= walk->end;
    if (!walk->backwards) {
        while (found > 0 && (found = walk_node(walk)) > 0)
            if (walk_on(walk, entry))
                return 1;
        return found;
    }
    while (found > 0 && walk->left == 0) {
        found = walk_node(walk);
        if (found > 0 && walk_gather(walk) < 0)
            found = -1;
    }
    if (found > 0)
        *entry = walk->found[--walk->left];
    return found;
}

int walk_next(Walk *walk, Entry *entry)
{
    if (walk->node == NULL || walk->backwards || !walk_on(walk, entry))
        return walk_far(walk, entry);
    return 1;
}

/* ---------------------------------------------------------------- what is held from call to call */

typedef struct {
    PyObject_HEAD
    EntryStore *store;
    uint64_t version;
    Py_ssize_t index;  /* NodeType: which; NodesType: the next */
    Py_ssize_t extent; /* NodeType: of a cold node, else negative; NodesType: the next node's, until there are no more */
    uint32_t number;   /* of the cold node in its extent */
    Table *table;      /* of the extent; NULL: not read yet */
} Place;

typedef struct {
    PyObject_HEAD
    EntryStore *store;
    uint64_t version;
    Py_ssize_t left; /* negative: all */
    Walk walk;
} Rows;

static int unchanged(EntryStore *store, uint64_t version)
{
    if (store->version == version)
        return 1;
    PyErr_SetString(PyExc_RuntimeError, "the entries changed while somebody went through them");
    return 0;
}

static Place *place_of(PyTypeObject *type, EntryStore *store, Py_ssize_t index)
{
    Place *place = PyObject_New(Place, type);
    if (place != NULL) {
        Py_INCREF(store);
        place->store = store;
        place->version = store->version;
        place->index = index;
        place->extent = -1;
        place->number = 0;
        place->table = NULL;
    }
    return place;
}

static void place_free(Place *place)
{
    if (place->table != NULL)
        part_release(&place->table->part);
    Py_DECREF(place->store);
    PyObject_Free(place);
}

PyObject *nodes_of(EntryStore *store, Py_ssize_t skipped)
{
    Place *place = place_of(&NodesType, store, 0);
    if (place != NULL)
        place->extent = skipped < 0 ? 0 : skipped;
    return (PyObject *)place;
}

/* The next cold node that is left; NULL at the end of these, or with an exception */
static PyObject *cold_nodes_next(Place *place)
{
    EntryStore *store = place->store;
    for (; is_cold(store) && place->extent < store->cold->count; place->extent++, place->number = 0) {
        if (place->table == NULL && (place->table = cold_table(store, &EXTENT(store->cold, place->extent))) == NULL)
            return NULL;
        while (place->number < place->table->count && holes_gone(EXTENT(store->cold, place->extent).holes, place->number))
            place->number++;
        if (place->number < place->table->count) {
            Place *node = place_of(&NodeType, store, 0);
            if (node == NULL)
                return NULL;
            node->extent = place->extent;
            node->number = place->number++;
            node->table = place->table;
            node->table->part.owners++;
            return (PyObject *)node;
        }
        part_release(&place->table->part);
        place->table = NULL;
    }
    return NULL;
}

static PyObject *nodes_next(Place *place)
{
    if (!unchanged(place->store, place->version))
        return NULL;
    PyObject *node = cold_nodes_next(place);
    if (node != NULL || PyErr_Occurred() || place->index >= place->store->count)
        return node;
    return (PyObject *)place_of(&NodeType, place->store, place->index++);
}

PyObject *rows_of(EntryStore *store, Id start, Id end, Py_ssize_t count)
{
    Rows *rows = PyObject_New(Rows, &RowsType);
    if (rows != NULL) {
        Py_INCREF(store);
        rows->store = store;
        rows->version = store->version;
        rows->left = count;
        walk_begin(&rows->walk, store, start, end, 0);
        rows->walk.wanted = count < 0 ? PY_SSIZE_T_MAX : count;
    }
    return (PyObject *)rows;
}

static void rows_free(Rows *rows)
{
    walk_end(&rows->walk);
    Py_DECREF(rows->store);
    PyObject_Free(rows);
}

static PyObject *rows_next(Rows *rows)
{
    Entry entry;
    Buf out = {0};
    if (!unchanged(rows->store, rows->version) || rows->left == 0 || walk_next(&rows->walk, &entry) <= 0)
        return NULL;
    rows->left -= rows->left > 0;
    PyObject *bytes = node_emit(rows->walk.node, &entry, &out) < 0 ? NULL : buf_bytes(&out);
    PyObject *id = bytes == NULL ? NULL : id_to_int(entry.id);
    buf_free(&out);
    if (id == NULL) {
        Py_XDECREF(bytes);
        return NULL;
    }
    return Py_BuildValue("NN", id, bytes);
}

/* ---------------------------------------------------------------- one node */

/* The node; a cold one is read into the walk, which the caller ends */
static Node *node_at(Place *place, Walk *walk)
{
    *walk = (Walk){0};
    if (!unchanged(place->store, place->version))
        return NULL;
    if (place->extent < 0)
        return STORE_NODE(place->store, place->index);
    if ((walk->cold = PyMem_Calloc(1, sizeof *walk->cold)) == NULL)
        return (Node *)PyErr_NoMemory();
    int status = cold_load(place->store, &EXTENT(place->store->cold, place->extent), place->table->rows + place->number,
                           place->number, walk->cold);
    return status < 0 ? NULL : &walk->cold->shown;
}

enum { FIRST, LAST, LIVE, STORED, SIZE, FOOTPRINT };

static PyObject *figure(Place *place, void *which)
{
    Node facts, *node = &facts;
    if (!unchanged(place->store, place->version))
        return NULL;
    if (place->extent < 0) {
        node = STORE_NODE(place->store, place->index);
    } else {
        facts = place->table->rows[place->number].node;
        facts.live = row_live(&EXTENT(place->store->cold, place->extent), place->table->rows + place->number);
    }
    switch ((int)(intptr_t)which) {
    case FIRST:
        return id_to_int(node->first);
    case LAST:
        return id_to_int(node->last);
    case LIVE:
        return PyLong_FromLongLong(node->live);
    case STORED:
        return PyLong_FromLongLong(node->stored);
    case SIZE:
        return PyLong_FromLongLong(node_size(node));
    default:
        return PyLong_FromSsize_t(place->extent < 0 ? node_memory(node) : node->size);
    }
}

static PyObject *live_ids(Place *place, PyObject *Py_UNUSED(ignored))
{
    PyObject *found = PyList_New(0);
    Walk walk = {0};
    Node *node = found == NULL ? NULL : node_at(place, &walk);
    int status = node == NULL ? -1 : 0;
    Entry entry;
    Id before = status ? 0 : node->before_low;
    for (char *at = status ? NULL : node->data + node->low; status == 0 && at < node->data + node->size; at = entry.end) {
        entry_read(at, before, &entry);
        before = entry.id;
        if (entry.dead)
            continue;
        PyObject *id = id_to_int(entry.id);
        status = id == NULL ? -1 : PyList_Append(found, id);
        Py_XDECREF(id);
    }
    walk_end(&walk);
    if (status < 0)
        Py_CLEAR(found);
    return found;
}

/* Every stored entry as (id, whether it is a tombstone, words). Its bytes are copied first: making a list may run what
 * changes the store, which is then noticed before the next entry is read. */
static PyObject *entries(Place *place, PyObject *Py_UNUSED(ignored))
{
    PyObject *found = PyList_New(0);
    Walk walk = {0};
    Node *node = found == NULL ? NULL : node_at(place, &walk);
    Node *twin = node == NULL ? NULL : node_copy(node);
    walk_end(&walk);
    int status = twin == NULL ? -1 : 0;
    View *words = NULL;
    Py_ssize_t room = 0;
    Entry entry;
    Id before = status ? 0 : twin->first;
    for (char *at = status ? NULL : twin->data + twin->begin; status == 0 && at < twin->data + twin->size; at = entry.end) {
        entry_read(at, before, &entry);
        before = entry.id;
        Py_ssize_t count = node_words(twin, &entry, &words, &room);
        PyObject *fields = count < 0 ? NULL : view_list(words, count);
        PyObject *id = fields == NULL ? NULL : id_to_int(entry.id);
        PyObject *row = id == NULL ? NULL : PyTuple_New(3);
        if (row == NULL) {
            Py_XDECREF(fields);
            Py_XDECREF(id);
            status = -1;
            break;
        }
        PyTuple_SET_ITEM(row, 0, id);
        PyTuple_SET_ITEM(row, 1, PyBool_FromLong(entry.dead));
        PyTuple_SET_ITEM(row, 2, fields);
        status = PyList_Append(found, row);
        Py_DECREF(row);
    }
    PyMem_Free(words);
    if (twin != NULL)
        node_free(twin);
    if (status < 0)
        Py_CLEAR(found);
    return found;
}

static PyObject *in_form(Place *place, PyObject *(*form)(const Node *))
{
    Walk walk = {0};
    Node *node = node_at(place, &walk);
    PyObject *made = node == NULL ? NULL : form(node);
    walk_end(&walk);
    return made;
}

static PyObject *pack(Place *place, PyObject *Py_UNUSED(ignored)) { return in_form(place, node_pack); }

static PyObject *listpack(Place *place, PyObject *Py_UNUSED(ignored)) { return in_form(place, node_listpack); }

/* Its facts and its bytes: NodeFigures and encode in millstream/engine/streams/nodeform.py */
static PyObject *form(Place *place, PyObject *Py_UNUSED(ignored)) { return in_form(place, node_form); }

static PyGetSetDef figures[] = {
    {"first", (getter)figure, NULL, NULL, (void *)FIRST},
    {"last", (getter)figure, NULL, NULL, (void *)LAST},
    {"live", (getter)figure, NULL, NULL, (void *)LIVE},
    {"stored", (getter)figure, NULL, NULL, (void *)STORED},
    {"size", (getter)figure, NULL, NULL, (void *)SIZE},
    {"footprint", (getter)figure, NULL, NULL, (void *)FOOTPRINT},
    {NULL},
};

static PyMethodDef node_methods[] = {
    {"live_ids", (PyCFunction)live_ids, METH_NOARGS, NULL},
    {"entries", (PyCFunction)entries, METH_NOARGS, NULL},
    {"pack", (PyCFunction)pack, METH_NOARGS, NULL},
    {"listpack", (PyCFunction)listpack, METH_NOARGS, NULL},
    {"form", (PyCFunction)form, METH_NOARGS, NULL},
    {NULL},
};

PyTypeObject NodeType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "millstream._native.Node",
    .tp_doc = "One node of a store, until the store changes; see Block in millstream.engine.streams.nodes.",
    .tp_basicsize = sizeof(Place),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_dealloc = (destructor)place_free,
    .tp_getset = figures,
    .tp_methods = node_methods,
};

PyTypeObject NodesType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "millstream._native.Nodes",
    .tp_doc = "The nodes of a store, one after another.",
    .tp_basicsize = sizeof(Place),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_dealloc = (destructor)place_free,
    .tp_iter = PyObject_SelfIter,
    .tp_iternext = (iternextfunc)nodes_next,
};

PyTypeObject RowsType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "millstream._native.Rows",
    .tp_doc = "Entries of a store one by one: id and wire form.",
    .tp_basicsize = sizeof(Rows),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_dealloc = (destructor)rows_free,
    .tp_iter = PyObject_SelfIter,
    .tp_iternext = (iternextfunc)rows_next,
};
