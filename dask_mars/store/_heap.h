/* Blocks of one process's arena: who holds them, and which of them are free.
 *
 * The bookkeeping lies in private memory, so that nothing that another process does can damage it. It knows nothing
 * of Python. Every function may be called from any thread, with or without the GIL: none waits for
 * anything while it holds the heap's own lock.
 *
 * A block has up to two holders. It is *born* while an array of this process owns it, and *sealed* while the store
 * counts on it. It is free when it has neither.
 */

#ifndef DASK_MARS_HEAP_H
#define DASK_MARS_HEAP_H

#include <stddef.h>
#include <stdint.h>

/* Blocks start at multiples of this and take multiples of it, so that freed pages can be given back whole. */
#define HEAP_PAGE_BYTES ((size_t)4096)
#define HEAP_NONE ((size_t)-1)

enum heap_holder { HEAP_BORN = 1, HEAP_SEALED = 2 };

struct heap;

struct heap_range {
    size_t offset;
    size_t size;
};

/* Make a heap over memory, which has to start at a page; NULL without memory for the bookkeeping. Blocks that are in
 * use already are sealed; they are sorted, do not overlap and lie within the capacity. */
struct heap *heap_create(void *memory, size_t capacity, const struct heap_range *live, size_t live_count);
void heap_destroy(struct heap *heap);

/* Return the offset of a new block, or HEAP_NONE where no free block is large enough. */
size_t heap_allocate(struct heap *heap, size_t size, enum heap_holder holder);

/* Take one holder from the block that starts at an offset; 0 if it has no such holder. */
int heap_release(struct heap *heap, size_t offset, enum heap_holder holder);

/* Add the store to the holders of the born block that starts at an offset; 0 if it is not born, or sealed already. */
int heap_seal(struct heap *heap, size_t offset);

/* NumPy's allocator functions, which take addresses. */
int heap_owns(const struct heap *heap, const void *address);
void *heap_malloc(struct heap *heap, size_t size);
void *heap_calloc(struct heap *heap, size_t size);
/* Return NULL if no free block is large enough; then the old block stays, and its size is in `old_size`. */
void *heap_realloc(struct heap *heap, void *address, size_t size, size_t *old_size);
void heap_free(struct heap *heap, void *address);

/* Find the born block that an address lies in: its offset and the size that was asked for; 0 if there is none. */
int heap_array_block(struct heap *heap, const void *address, struct heap_range *block);

/* Give the pages of all free blocks back to the system, where it takes them back. They are zeros afterwards. */
void heap_trim(struct heap *heap);

/* Allocate no more blocks; blocks in use stay. */
void heap_close(struct heap *heap);

/* While a flag is set, give the pages of large blocks back as soon as they are free. */
void heap_watch(struct heap *heap, const volatile uint32_t *eager);

size_t heap_capacity(const struct heap *heap);
size_t heap_used_bytes(struct heap *heap);
/* Return the bytes of blocks that arrays own and the store does not. */
size_t heap_born_bytes(struct heap *heap);

/* Start to measure the bytes in use, and return their largest growth since then. */
void heap_mark(struct heap *heap);
size_t heap_peak_bytes(struct heap *heap);

size_t heap_largest_free(struct heap *heap);

/* Return a new array of the used or the free blocks by offset, their sizes in whole pages; NULL without memory. */
struct heap_range *heap_ranges(struct heap *heap, int used, size_t *count);

#endif
