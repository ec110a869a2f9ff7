/* Blocks of memory for the bytes of nodes that are full: what is trimmed goes back to the system at once.
 *
 * An allocator keeps what is freed, as a small piece that lives on holds the pages around it. So a larger stream has
 * blocks of its own. A block without nodes gives its pages back and is kept for the next stream.
 *
 * Invariants: a block begins at a multiple of its size, so a node's bytes lead to it. left is the number of nodes in
 * it; one that is open belongs to a store, which still adds. All of this happens under the interpreter's lock.
 */
#include "node.h"

#ifndef _WIN32
#include <sys/mman.h>

#define BLOCK ((size_t)1 << 18)
#define BLOCKS_AT_ONCE 256 /* requested from the system together, to limit the number of mappings */
#define WARM 16

struct Block {
    size_t used; /* bytes, with this head */
    uint32_t left;
    int is_open;
};

/* Blocks without nodes; the array has room for every block. The last ones are warm: they have their pages, so a stream
 * that is trimmed as it grows needs no new ones */
static Block **spare;
static size_t spares, warm, blocks;

static int add_blocks(void)
{
    Block **more = PyMem_RawRealloc(spare, (blocks + BLOCKS_AT_ONCE) * sizeof *more);
    if (more == NULL)
        return -1;
    spare = more;
    char *memory = mmap(NULL, (BLOCKS_AT_ONCE + 1) * BLOCK, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return -1;
    memory = (char *)(((uintptr_t)memory + BLOCK - 1) & ~(uintptr_t)(BLOCK - 1));
    for (size_t at = BLOCKS_AT_ONCE; at > 0; at--) /* is reused first */
        spare[spares++] = (Block *)(memory + (at - 1) * BLOCK);
    blocks += BLOCKS_AT_ONCE;
    return 0;
}

static void give_back(Block *block)
{
    size_t at = spares++;
    if (warm < WARM) {
        warm++;
    } else {
        madvise(block, BLOCK, MADV_DONTNEED);
        spare[at] = spare[at - WARM];
        at -= WARM;
    }
    spare[at] = block;
}

void block_close(Block *block)
{
    if (block == NULL)
        return;
    block->is_open = 0;
    if (block->left == 0)
        give_back(block);
}

char *block_add(Block **open, const char *data, size_t size)
{
    Block *block = *open;
    if (size > BLOCK - sizeof *block)
        return NULL;
    if (block == NULL || block->used + size > BLOCK) {
        if (spares == 0 && add_blocks() < 0)
            return NULL;
        block_close(block);
        block = *open = spare[--spares];
        warm -= warm > 0;
        *block = (Block){.used = sizeof *block, .is_open = 1};
    }
    char *at = (char *)block + block->used;
    block->used += size;
    block->left++;
    return memcpy(at, data, size);
}

void block_drop(const char *data)
{
    Block *block = (Block *)((uintptr_t)data & ~(uintptr_t)(BLOCK - 1));
    if (--block->left > 0)
        return;
    if (block->is_open)
        block->used = sizeof *block;
    else
        give_back(block);
}

#else

char *block_add(Block **open, const char *data, size_t size)
{
    return NULL;
}

void block_close(Block *block)
{
}

void block_drop(const char *data)
{
}

#endif
