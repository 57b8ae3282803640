#define _GNU_SOURCE
#include "_heap.h"

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#ifndef MAP_ANONYMOUS
#define MAP_ANONYMOUS MAP_ANON
#endif
#ifndef MAP_NORESERVE
#define MAP_NORESERVE 0
#endif

/* -- sets of small integers -------------------------------------------------------------------------------------
 *
 * A bit for each number, and above each level of words another one that says which of them are not empty. Six
 * levels of 64 suffice for any arena, and the next or previous member is found with a few instructions a level.
 */

#define MAX_LEVELS 6

struct set {
    unsigned levels;
    uint64_t *words[MAX_LEVELS];
};

static size_t set_words(size_t numbers)
{
    size_t total = 0;
    do {
        numbers = (numbers + 63) / 64;
        total += numbers;
    } while (numbers > 1);
    return total;
}

static uint64_t *set_init(struct set *set, uint64_t *memory, size_t numbers)
{
    set->levels = 0;
    do {
        set->words[set->levels++] = memory;
        numbers = (numbers + 63) / 64;
        memory += numbers;
    } while (numbers > 1);
    return memory;
}

static void set_add(struct set *set, size_t number)
{
    for (unsigned level = 0; level < set->levels; level++, number /= 64) {
        uint64_t *word = &set->words[level][number / 64];
        uint64_t before = *word;
        *word |= (uint64_t)1 << (number % 64);
        if (before)
            return;
    }
}

static void set_remove(struct set *set, size_t number)
{
    for (unsigned level = 0; level < set->levels; level++, number /= 64) {
        uint64_t *word = &set->words[level][number / 64];
        *word &= ~((uint64_t)1 << (number % 64));
        if (*word)
            return;
    }
}

/* Return the smallest member that is not below a number, which has to be one that the set may have. */
static size_t set_from(const struct set *set, size_t number)
{
    uint64_t mask = ~(uint64_t)0 << (number % 64);
    for (unsigned level = 0; level < set->levels; level++) {
        uint64_t found = set->words[level][number / 64] & mask;
        if (found) {
            number = (number & ~(size_t)63) + (size_t)__builtin_ctzll(found);
            while (level--)
                number = number * 64 + (size_t)__builtin_ctzll(set->words[level][number]);
            return number;
        }
        number /= 64;
        /* The number's own word has been searched. */
        mask = number % 64 == 63 ? 0 : ~(uint64_t)0 << (number % 64 + 1);
    }
    return HEAP_NONE;
}

/* Return the largest member that is not above a number. */
static size_t set_up_to(const struct set *set, size_t number)
{
    uint64_t mask = ~(uint64_t)0 >> (63 - number % 64);
    for (unsigned level = 0; level < set->levels; level++) {
        uint64_t found = set->words[level][number / 64] & mask;
        if (found) {
            number = (number & ~(size_t)63) + 63 - (size_t)__builtin_clzll(found);
            while (level--)
                number = number * 64 + 63 - (size_t)__builtin_clzll(set->words[level][number]);
            return number;
        }
        number /= 64;
        mask = ((uint64_t)1 << (number % 64)) - 1;
    }
    return HEAP_NONE;
}

/* -- blocks -----------------------------------------------------------------------------------------------------*/

/* Minimum size of blocks whose pages are returned at once, in pages: each costs a system call. */
#define EAGER_PAGES 64

/* The block that starts at a page. Blocks, free or not, cover the arena without gaps. */
struct block {
    uint32_t pages;
    /* Neighbours in the list of free blocks of the same size, newest first; page numbers plus one, 0 for none. */
    uint32_t next;
    uint32_t previous;
    /* Unrequested bytes of its last page. */
    uint16_t slack;
    uint8_t holders;
    /* It is free, and its pages have not been written to since the system gave them. */
    uint8_t clean;
};

struct heap {
    pthread_mutex_t lock;
    char *memory;
    size_t pages;
    size_t used_pages;
    size_t sealed_pages;
    /* Maximum number of pages in use since the mark was set, and the number at that time. */
    size_t peak_pages;
    size_t marked_pages;
    /* Pages from here on have not been written to since the system gave them, whatever their block says. */
    size_t fresh_page;
    /* Whether memory is short, so that free pages go back to the system at once; NULL for never. */
    const volatile uint32_t *eager;
    struct block *blocks;
    /* The newest free block of each number of pages: its first page plus one. */
    uint32_t *newest;
    struct set starts;
    struct set free_sizes;
    void *tables;
    size_t tables_bytes;
    /* In a process forked from the arena's own: everything belongs to the parent. */
    int abandoned;
    /* Its memory belongs to another process from now on, except for the blocks in use. */
    int closed;
    /* Copies of the born blocks, one after the other, from before a fork until it is done. */
    char *rescued;
    size_t rescued_bytes;
    struct heap *next_heap;
};

static void *address_of(const struct heap *heap, size_t start);

static size_t pages_for(size_t size)
{
    size_t pages = size / HEAP_PAGE_BYTES + (size % HEAP_PAGE_BYTES != 0);
    return pages ? pages : 1;
}

/* It is changed under the lock, and read without. */
static void set_used(struct heap *heap, size_t pages)
{
    __atomic_store_n(&heap->used_pages, pages, __ATOMIC_RELAXED);
}

static void add_free(struct heap *heap, size_t start, size_t pages, int clean)
{
    uint32_t *newest = &heap->newest[pages];
    struct block *block = &heap->blocks[start];
    block->pages = (uint32_t)pages;
    block->next = *newest;
    block->previous = 0;
    block->holders = 0;
    block->clean = (uint8_t)clean;
    if (*newest)
        heap->blocks[*newest - 1].previous = (uint32_t)start + 1;
    else
        set_add(&heap->free_sizes, pages);
    *newest = (uint32_t)start + 1;
    set_add(&heap->starts, start);
}

/* Take a free block out of its list; it remains a block. */
static void take_free(struct heap *heap, size_t start)
{
    struct block *block = &heap->blocks[start];
    if (block->next)
        heap->blocks[block->next - 1].previous = block->previous;
    if (block->previous)
        heap->blocks[block->previous - 1].next = block->next;
    else {
        heap->newest[block->pages] = block->next;
        if (!block->next)
            set_remove(&heap->free_sizes, block->pages);
    }
}

static void hold(struct heap *heap, size_t start, size_t size, enum heap_holder holder)
{
    struct block *block = &heap->blocks[start];
    size_t end = start + block->pages;
    block->holders = (uint8_t)holder;
    block->slack = (uint16_t)(block->pages * HEAP_PAGE_BYTES - size);
    set_used(heap, heap->used_pages + block->pages);
    if (holder == HEAP_SEALED)
        heap->sealed_pages += block->pages;
    if (heap->used_pages > heap->peak_pages)
        heap->peak_pages = heap->used_pages;
    if (end > heap->fresh_page)
        heap->fresh_page = end;
}

/* Return the first page of a new block and how many bytes of it may be other than zero. */
static size_t take(struct heap *heap, size_t size, enum heap_holder holder, size_t *dirty)
{
    size_t pages = pages_for(size);
    if (heap->abandoned || heap->closed || pages > heap->pages)
        return HEAP_NONE;
    size_t found = set_from(&heap->free_sizes, pages);
    if (found == HEAP_NONE)
        return HEAP_NONE;
    size_t start = heap->newest[found] - 1;
    struct block *block = &heap->blocks[start];
    take_free(heap, start);
    if (found > pages) {
        add_free(heap, start + pages, found - pages, block->clean);
        block->pages = (uint32_t)pages;
    }
    *dirty = 0;
    if (!block->clean && start < heap->fresh_page)
        *dirty = (heap->fresh_page - start < pages ? heap->fresh_page - start : pages) * HEAP_PAGE_BYTES;
    hold(heap, start, size, holder);
    return start;
}

/* Free pages that have no holder any more, and join them with their free neighbours. */
static void give(struct heap *heap, size_t start, size_t pages)
{
    size_t after = start + pages;
    if (after < heap->pages && !heap->blocks[after].holders) {
        take_free(heap, after);
        set_remove(&heap->starts, after);
        pages += heap->blocks[after].pages;
    }
    if (start) {
        size_t before = set_up_to(&heap->starts, start - 1);
        if (!heap->blocks[before].holders) {
            take_free(heap, before);
            set_remove(&heap->starts, start);
            pages += heap->blocks[before].pages;
            start = before;
        }
    }
    add_free(heap, start, pages, 0);
}

static int release(struct heap *heap, size_t start, enum heap_holder holder)
{
    struct block *block = &heap->blocks[start];
    if (!(block->holders & holder))
        return 0;
    block->holders &= (uint8_t)~holder;
    if (holder == HEAP_SEALED)
        heap->sealed_pages -= block->pages;
    if (!block->holders) {
        set_used(heap, heap->used_pages - block->pages);
#ifdef MADV_REMOVE
        if (heap->eager && block->pages >= EAGER_PAGES && __atomic_load_n(heap->eager, __ATOMIC_RELAXED))
            madvise(address_of(heap, start), block->pages * HEAP_PAGE_BYTES, MADV_REMOVE);
#endif
        give(heap, start, block->pages);
    }
    return 1;
}

static size_t start_of(const struct heap *heap, const void *address)
{
    return set_up_to(&heap->starts, (size_t)((const char *)address - heap->memory) / HEAP_PAGE_BYTES);
}

/* Return the first page of the block that starts at an offset. */
static size_t start_at(const struct heap *heap, size_t offset)
{
    size_t page = offset / HEAP_PAGE_BYTES;
    if (offset % HEAP_PAGE_BYTES || page >= heap->pages || set_up_to(&heap->starts, page) != page)
        return HEAP_NONE;
    return page;
}

static void *address_of(const struct heap *heap, size_t start)
{
    return heap->memory + start * HEAP_PAGE_BYTES;
}

static size_t requested(const struct block *block)
{
    return block->pages * HEAP_PAGE_BYTES - block->slack;
}

/* -- fork -------------------------------------------------------------------------------------------------------
 *
 * An arena is shared with a forked process too. Arrays that are not sealed would change under either process when
 * the other writes to them, and under the child when the parent uses their memory again. So the child gets copies
 * of them, at the same addresses, and leaves the arena alone from then on.
 */

static pthread_mutex_t heaps_lock = PTHREAD_MUTEX_INITIALIZER;
static struct heap *heaps;

static void rescue(struct heap *heap)
{
    size_t total = 0;
    heap->rescued = NULL;
    for (size_t start = 0; start < heap->pages; start += heap->blocks[start].pages)
        if (heap->blocks[start].holders & HEAP_BORN)
            total += heap->blocks[start].pages * HEAP_PAGE_BYTES;
    heap->rescued_bytes = total;
    if (!total)
        return;
    heap->rescued = mmap(NULL, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (heap->rescued == MAP_FAILED)
        return;
    char *to = heap->rescued;
    for (size_t start = 0; start < heap->pages; start += heap->blocks[start].pages) {
        if (heap->blocks[start].holders & HEAP_BORN) {
            memcpy(to, address_of(heap, start), requested(&heap->blocks[start]));
            to += heap->blocks[start].pages * HEAP_PAGE_BYTES;
        }
    }
}

static void forget_rescued(struct heap *heap)
{
    if (heap->rescued_bytes && heap->rescued != MAP_FAILED)
        munmap(heap->rescued, heap->rescued_bytes);
    heap->rescued_bytes = 0;
}

/* In the child: put the copies where the born blocks were. */
static void restore(struct heap *heap)
{
    const char *from = heap->rescued;
    if (!heap->rescued_bytes)
        return;
    for (size_t start = 0; start < heap->pages; start += heap->blocks[start].pages) {
        if (!(heap->blocks[start].holders & HEAP_BORN))
            continue;
        size_t size = heap->blocks[start].pages * HEAP_PAGE_BYTES;
        if (heap->rescued == MAP_FAILED
            || mmap(address_of(heap, start), size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
                    -1, 0) == MAP_FAILED) {
            /* To go on would be to work on memory that the parent uses for something else. */
            fputs("dask_mars: no memory for the arrays of a forked process\n", stderr);
            abort();
        }
        memcpy(address_of(heap, start), from, requested(&heap->blocks[start]));
        from += size;
    }
}

static void before_fork(void)
{
    pthread_mutex_lock(&heaps_lock);
    for (struct heap *heap = heaps; heap; heap = heap->next_heap) {
        pthread_mutex_lock(&heap->lock);
        if (!heap->abandoned)
            rescue(heap);
    }
}

static void after_fork_in_parent(void)
{
    for (struct heap *heap = heaps; heap; heap = heap->next_heap) {
        forget_rescued(heap);
        pthread_mutex_unlock(&heap->lock);
    }
    pthread_mutex_unlock(&heaps_lock);
}

static void after_fork_in_child(void)
{
    for (struct heap *heap = heaps; heap; heap = heap->next_heap) {
        if (!heap->abandoned)
            restore(heap);
        forget_rescued(heap);
        heap->abandoned = 1;
        pthread_mutex_unlock(&heap->lock);
    }
    pthread_mutex_unlock(&heaps_lock);
}

static void watch_forks(void)
{
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

/* -- making and unmaking ----------------------------------------------------------------------------------------*/

struct heap *heap_create(void *memory, size_t capacity, const struct heap_range *live, size_t live_count)
{
    static pthread_once_t watching = PTHREAD_ONCE_INIT;
    struct heap *heap = calloc(1, sizeof(struct heap));
    if (!heap)
        return NULL;
    heap->memory = memory;
    heap->pages = capacity / HEAP_PAGE_BYTES;
    /* An earlier process may have written to any page. */
    heap->fresh_page = heap->pages;
    size_t sizes = heap->pages + 1;
    size_t words = set_words(sizes);
    heap->tables_bytes = 2 * words * sizeof(uint64_t) + heap->pages * sizeof(struct block) + sizes * sizeof(uint32_t);
    /* Only entries of pages where blocks start, and of sizes of free blocks, are ever touched. */
    heap->tables = mmap(NULL, heap->tables_bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (heap->tables == MAP_FAILED) {
        free(heap);
        return NULL;
    }
    uint64_t *rest = set_init(&heap->starts, heap->tables, sizes);
    rest = set_init(&heap->free_sizes, rest, sizes);
    heap->blocks = (struct block *)rest;
    heap->newest = (uint32_t *)(heap->blocks + heap->pages);
    pthread_mutex_init(&heap->lock, NULL);

    size_t end = 0;
    for (size_t number = 0; number < live_count; number++) {
        size_t start = live[number].offset / HEAP_PAGE_BYTES;
        if (start > end)
            add_free(heap, end, start - end, 0);
        heap->blocks[start].pages = (uint32_t)pages_for(live[number].size);
        set_add(&heap->starts, start);
        hold(heap, start, live[number].size, HEAP_SEALED);
        end = start + heap->blocks[start].pages;
    }
    if (end < heap->pages)
        add_free(heap, end, heap->pages - end, 0);

    pthread_once(&watching, watch_forks);
    pthread_mutex_lock(&heaps_lock);
    heap->next_heap = heaps;
    heaps = heap;
    pthread_mutex_unlock(&heaps_lock);
    return heap;
}

void heap_destroy(struct heap *heap)
{
    pthread_mutex_lock(&heaps_lock);
    struct heap **link = &heaps;
    while (*link != heap)
        link = &(*link)->next_heap;
    *link = heap->next_heap;
    pthread_mutex_unlock(&heaps_lock);
    pthread_mutex_destroy(&heap->lock);
    munmap(heap->tables, heap->tables_bytes);
    free(heap);
}

/* -- for the store ----------------------------------------------------------------------------------------------*/

size_t heap_allocate(struct heap *heap, size_t size, enum heap_holder holder)
{
    size_t dirty;
    pthread_mutex_lock(&heap->lock);
    size_t start = take(heap, size, holder, &dirty);
    pthread_mutex_unlock(&heap->lock);
    return start == HEAP_NONE ? HEAP_NONE : start * HEAP_PAGE_BYTES;
}

int heap_release(struct heap *heap, size_t offset, enum heap_holder holder)
{
    int released = 0;
    pthread_mutex_lock(&heap->lock);
    size_t start = start_at(heap, offset);
    if (start != HEAP_NONE)
        released = heap->abandoned || release(heap, start, holder);
    pthread_mutex_unlock(&heap->lock);
    return released;
}

int heap_seal(struct heap *heap, size_t offset)
{
    int sealed = 0;
    pthread_mutex_lock(&heap->lock);
    size_t start = start_at(heap, offset);
    if (start != HEAP_NONE && !heap->abandoned && heap->blocks[start].holders == HEAP_BORN) {
        heap->blocks[start].holders |= HEAP_SEALED;
        heap->sealed_pages += heap->blocks[start].pages;
        sealed = 1;
    }
    pthread_mutex_unlock(&heap->lock);
    return sealed;
}

int heap_array_block(struct heap *heap, const void *address, struct heap_range *block)
{
    int found = 0;
    if (!heap_owns(heap, address))
        return 0;
    pthread_mutex_lock(&heap->lock);
    size_t start = start_of(heap, address);
    if (!heap->abandoned && heap->blocks[start].holders & HEAP_BORN) {
        block->offset = start * HEAP_PAGE_BYTES;
        block->size = requested(&heap->blocks[start]);
        found = 1;
    }
    pthread_mutex_unlock(&heap->lock);
    return found;
}

void heap_trim(struct heap *heap)
{
#ifdef MADV_REMOVE
    /* Under the lock: a block that is taken meanwhile must not lose what is written to it. */
    pthread_mutex_lock(&heap->lock);
    size_t start = heap->abandoned || heap->closed ? heap->pages : 0;
    while (start < heap->pages) {
        struct block *block = &heap->blocks[start];
        if (!block->holders && !block->clean
            && !madvise(address_of(heap, start), block->pages * HEAP_PAGE_BYTES, MADV_REMOVE)) {
            block->clean = 1;
            if (start + block->pages == heap->pages)
                heap->fresh_page = start;
        }
        start += block->pages;
    }
    pthread_mutex_unlock(&heap->lock);
#else
    (void)heap;
#endif
}

void heap_close(struct heap *heap)
{
    pthread_mutex_lock(&heap->lock);
    heap->closed = 1;
    pthread_mutex_unlock(&heap->lock);
}

void heap_watch(struct heap *heap, const volatile uint32_t *eager)
{
    pthread_mutex_lock(&heap->lock);
    heap->eager = eager;
    pthread_mutex_unlock(&heap->lock);
}

size_t heap_capacity(const struct heap *heap)
{
    return heap->pages * HEAP_PAGE_BYTES;
}

size_t heap_used_bytes(struct heap *heap)
{
    return __atomic_load_n(&heap->used_pages, __ATOMIC_RELAXED) * HEAP_PAGE_BYTES;
}

size_t heap_born_bytes(struct heap *heap)
{
    pthread_mutex_lock(&heap->lock);
    size_t pages = heap->used_pages - heap->sealed_pages;
    pthread_mutex_unlock(&heap->lock);
    return pages * HEAP_PAGE_BYTES;
}

void heap_mark(struct heap *heap)
{
    pthread_mutex_lock(&heap->lock);
    heap->peak_pages = heap->marked_pages = heap->used_pages;
    pthread_mutex_unlock(&heap->lock);
}

size_t heap_peak_bytes(struct heap *heap)
{
    pthread_mutex_lock(&heap->lock);
    size_t pages = heap->peak_pages - heap->marked_pages;
    pthread_mutex_unlock(&heap->lock);
    return pages * HEAP_PAGE_BYTES;
}

size_t heap_largest_free(struct heap *heap)
{
    pthread_mutex_lock(&heap->lock);
    size_t pages = set_up_to(&heap->free_sizes, heap->pages);
    pthread_mutex_unlock(&heap->lock);
    return pages == HEAP_NONE ? 0 : pages * HEAP_PAGE_BYTES;
}

struct heap_range *heap_ranges(struct heap *heap, int used, size_t *count)
{
    size_t found = 0, room = 64;
    struct heap_range *ranges = malloc(room * sizeof *ranges);
    pthread_mutex_lock(&heap->lock);
    for (size_t start = 0; ranges && start < heap->pages; start += heap->blocks[start].pages) {
        const struct block *block = &heap->blocks[start];
        if ((block->holders != 0) != used)
            continue;
        if (found == room) {
            struct heap_range *larger = realloc(ranges, (room *= 2) * sizeof *ranges);
            if (!larger)
                free(ranges);
            ranges = larger;
        }
        if (ranges)
            ranges[found++] = (struct heap_range){start * HEAP_PAGE_BYTES, block->pages * HEAP_PAGE_BYTES};
    }
    pthread_mutex_unlock(&heap->lock);
    *count = found;
    return ranges;
}

/* -- for arrays -------------------------------------------------------------------------------------------------*/

int heap_owns(const struct heap *heap, const void *address)
{
    uintptr_t distance = (uintptr_t)address - (uintptr_t)heap->memory;
    return distance < heap->pages * HEAP_PAGE_BYTES;
}

void *heap_malloc(struct heap *heap, size_t size)
{
    size_t offset = heap_allocate(heap, size, HEAP_BORN);
    return offset == HEAP_NONE ? NULL : heap->memory + offset;
}

void *heap_calloc(struct heap *heap, size_t size)
{
    size_t dirty;
    pthread_mutex_lock(&heap->lock);
    size_t start = take(heap, size, HEAP_BORN, &dirty);
    pthread_mutex_unlock(&heap->lock);
    if (start == HEAP_NONE)
        return NULL;
    return memset(address_of(heap, start), 0, dirty < size ? dirty : size);
}

/* Try to give a born block another size where it is. */
static int resize(struct heap *heap, size_t start, size_t size)
{
    struct block *block = &heap->blocks[start];
    size_t pages = pages_for(size), before = block->pages;
    /* Other processes know the size of a sealed block. */
    if (block->holders != HEAP_BORN || pages > heap->pages || (heap->closed && pages > before))
        return 0;
    if (pages > before) {
        size_t after = start + before;
        if (after >= heap->pages || heap->blocks[after].holders || before + heap->blocks[after].pages < pages)
            return 0;
        size_t rest = before + heap->blocks[after].pages - pages;
        take_free(heap, after);
        set_remove(&heap->starts, after);
        if (rest)
            add_free(heap, start + pages, rest, heap->blocks[after].clean);
    }
    set_used(heap, heap->used_pages - before);
    block->pages = (uint32_t)pages;
    hold(heap, start, size, HEAP_BORN);
    if (pages < before)
        give(heap, start + pages, before - pages);
    return 1;
}

void *heap_realloc(struct heap *heap, void *address, size_t size, size_t *old_size)
{
    size_t dirty, start = HEAP_NONE;
    pthread_mutex_lock(&heap->lock);
    size_t old = start_of(heap, address);
    *old_size = requested(&heap->blocks[old]);
    int resized = !heap->abandoned && resize(heap, old, size);
    if (!resized)
        start = take(heap, size, HEAP_BORN, &dirty);
    pthread_mutex_unlock(&heap->lock);
    if (resized)
        return address;
    if (start == HEAP_NONE)
        return NULL;
    memcpy(address_of(heap, start), address, *old_size < size ? *old_size : size);
    heap_free(heap, address);
    return address_of(heap, start);
}

void heap_free(struct heap *heap, void *address)
{
    pthread_mutex_lock(&heap->lock);
    if (!heap->abandoned)
        release(heap, start_of(heap, address), HEAP_BORN);
    pthread_mutex_unlock(&heap->lock);
}
