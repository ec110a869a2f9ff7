/* Items in the order of their keys, in an array of short sorted pieces; pending.h has the invariants between calls.
 *
 * Most keys arrive at the end, so a full last piece stays full and a new one follows it. Any other full piece is cut in
 * two. A piece that has lost three quarters of its items gives half of its room back. Otherwise a few records that are
 * never acknowledged would keep the room of all earlier ones.
 */
#include "pending.h"

#define PIECE_MIN 4

/* Slot of the piece that has the key or would get it: the first one that ends at or after it */
static Py_ssize_t find_slot(const Index *index, Id key)
{
    Py_ssize_t low = 0, high = index->count;
    if (high && index->slots[0].last >= key)
        return 0;
    while (low < high) {
        Py_ssize_t middle = (low + high) / 2;
        if (index->slots[middle].last < key)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static int find_item(const Piece *piece, Id key)
{
    int low = 0, high = piece->count;
    if (piece->items[0]->key >= key)
        return 0;
    while (low < high) {
        int middle = (low + high) / 2;
        if (piece->items[middle]->key < key)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

Item *index_seek(const Index *index, Id from, IndexPlace *place)
{
    place->slot = find_slot(index, from);
    if (place->slot == index->count)
        return NULL;
    const Piece *piece = index->slots[place->slot].piece;
    place->at = find_item(piece, from);
    return piece->items[place->at];
}

Item *index_next(const Index *index, IndexPlace *place)
{
    if (place->slot >= index->count)
        return NULL;
    if (++place->at >= index->slots[place->slot].piece->count) {
        place->at = 0;
        if (++place->slot >= index->count)
            return NULL;
    }
    return index->slots[place->slot].piece->items[place->at];
}

Item *index_get(const Index *index, Id key)
{
    IndexPlace place;
    Item *found = index_seek(index, key, &place);
    return found != NULL && found->key == key ? found : NULL;
}

Item *index_before(const Index *index, Id key)
{
    Py_ssize_t slot = find_slot(index, key);
    if (slot < index->count) {
        const Piece *piece = index->slots[slot].piece;
        int at = find_item(piece, key);
        if (at)
            return piece->items[at - 1];
    }
    if (slot == 0)
        return NULL;
    const Piece *piece = index->slots[slot - 1].piece;
    return piece->items[piece->count - 1];
}

Item *index_last(const Index *index)
{
    if (index->count == 0)
        return NULL;
    const Piece *piece = index->slots[index->count - 1].piece;
    return piece->items[piece->count - 1];
}

static size_t piece_size(int room) { return sizeof(Piece) + (size_t)room * sizeof(Item *); }

static void free_piece(Piece *piece) { free_counted(piece, piece_size(piece->room)); }

static void free_slots(Index *index) { free_counted(index->slots, (size_t)index->room * sizeof(Slot)); }

/* Return the piece with a changed capacity; NULL with MemoryError, and it is unchanged */
static Piece *piece_resize(Piece *piece, int room)
{
    Piece *resized = resize_counted(piece, piece == NULL ? 0 : piece_size(piece->room), piece_size(room));
    if (resized == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    if (piece == NULL)
        resized->count = 0;
    resized->room = room;
    return resized;
}

/* Insert a slot with an empty piece, which must be filled at once */
static Piece *add_slot(Index *index, Py_ssize_t at, int room)
{
    if (index->count == index->room) {
        Py_ssize_t more = index->room + index->room / 2 + 1;
        Slot *slots = resize_counted(index->slots, (size_t)index->room * sizeof(Slot), (size_t)more * sizeof(Slot));
        if (slots == NULL) {
            PyErr_NoMemory();
            return NULL;
        }
        index->slots = slots;
        index->room = more;
    }
    Piece *piece = piece_resize(NULL, room);
    if (piece == NULL)
        return NULL;
    memmove(index->slots + at + 1, index->slots + at, (size_t)(index->count - at) * sizeof(Slot));
    index->slots[at].piece = piece;
    index->count++;
    return piece;
}

/* Make room for one item in a slot's full piece, splitting it if necessary; -1: nothing is changed */
static int add_room(Index *index, Py_ssize_t at)
{
    Piece *piece = index->slots[at].piece;
    if (piece->room < PIECE_MAX) {
        piece = piece_resize(piece, piece->room * 2);
        if (piece == NULL)
            return -1;
        index->slots[at].piece = piece;
        return 0;
    }
    Piece *upper = add_slot(index, at + 1, PIECE_MAX);
    if (upper == NULL)
        return -1;
    int half = piece->count / 2;
    upper->count = piece->count - half;
    memcpy(upper->items, piece->items + half, (size_t)upper->count * sizeof(Item *));
    piece->count = half;
    index->slots[at + 1].last = index->slots[at].last;
    index->slots[at].last = piece->items[half - 1]->key;
    return 0;
}

static inline int make_room(Index *index, Py_ssize_t at)
{
    const Piece *piece = index->slots[at].piece;
    return piece->count < piece->room ? 0 : add_room(index, at);
}

static int index_append(Index *index, Item *item)
{
    Py_ssize_t last = index->count - 1;
    if (last < 0 || index->slots[last].piece->count == PIECE_MAX) {
        if (add_slot(index, last + 1, last < 0 ? PIECE_MIN : PIECE_MAX) == NULL)
            return -1;
        last++;
    } else if (make_room(index, last) < 0)
        return -1;
    Piece *piece = index->slots[last].piece;
    piece->items[piece->count++] = item;
    index->slots[last].last = item->key;
    return 0;
}

static int index_insert(Index *index, Item *item)
{
    Py_ssize_t at = find_slot(index, item->key);
    if (make_room(index, at) < 0)
        return -1;
    at += index->slots[at].last < item->key; /* the split was below the key */
    Piece *piece = index->slots[at].piece;
    int place = find_item(piece, item->key);
    memmove(piece->items + place + 1, piece->items + place, (size_t)(piece->count - place) * sizeof(Item *));
    piece->items[place] = item;
    piece->count++;
    return 0;
}

int index_add(Index *index, Item *item)
{
    int is_last = index->count == 0 || item->key > index->slots[index->count - 1].last;
    if ((is_last ? index_append(index, item) : index_insert(index, item)) < 0)
        return -1;
    index->size++;
    index->version++;
    return 0;
}

static void drop_slot(Index *index, Py_ssize_t at)
{
    free_piece(index->slots[at].piece);
    index->count--;
    memmove(index->slots + at, index->slots + at + 1, (size_t)(index->count - at) * sizeof(Slot));
    if (index->count * 4 > index->room)
        return;
    Py_ssize_t room = index->count * 2;
    if (room == 0) {
        free_slots(index);
        index->slots = NULL;
        index->room = 0;
        return;
    }
    Slot *slots = resize_counted(index->slots, (size_t)index->room * sizeof(Slot), (size_t)room * sizeof(Slot));
    if (slots != NULL) {
        index->slots = slots;
        index->room = room;
    }
}

Item *index_remove(Index *index, Id key)
{
    IndexPlace place;
    Item *found = index_seek(index, key, &place);
    if (found == NULL || found->key != key)
        return NULL;
    Slot *slot = index->slots + place.slot;
    Piece *piece = slot->piece;
    piece->count--;
    memmove(piece->items + place.at, piece->items + place.at + 1, (size_t)(piece->count - place.at) * sizeof(Item *));
    index->size--;
    index->version++;
    if (piece->count == 0) {
        drop_slot(index, place.slot);
        return found;
    }
    slot->last = piece->items[piece->count - 1]->key;
    if (piece->room > PIECE_MIN && piece->count * 4 <= piece->room) {
        int room = piece->room / 2;
        piece = resize_counted(piece, piece_size(piece->room), piece_size(room));
        if (piece != NULL) {
            piece->room = room;
            slot->piece = piece;
        }
    }
    return found;
}

void index_clear(Index *index)
{
    for (Py_ssize_t at = 0; at < index->count; at++)
        free_piece(index->slots[at].piece);
    free_slots(index);
    *index = (Index){.version = index->version + 1};
}

Py_ssize_t index_memory(const Index *index)
{
    Py_ssize_t size = index->slots == NULL ? 0 : block_size((size_t)index->room * sizeof(Slot));
    for (Py_ssize_t at = 0; at < index->count; at++)
        size += block_size(piece_size(index->slots[at].piece->room));
    return size;
}
