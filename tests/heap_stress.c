/* Threads that take and give blocks of one heap at random, and look after each step whether what they hold is theirs.
 *
 * To be built with the address, undefined behaviour and thread sanitizers, or run under valgrind: see `test_c_stress.py`.
 */

#define _GNU_SOURCE
#include "../dask_mars/store/_heap.h"
#include "stress.h"

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define CAPACITY ((size_t)300 * HEAP_PAGE_BYTES)
#define THREADS 6
#define HELD 12

static struct heap *heap;
static char *memory;
static int steps;

struct held {
    unsigned char *address;
    size_t size;
    int holders;
    unsigned char mark;
};

static void fill(struct held *held, unsigned char mark)
{
    held->mark = mark;
    memset(held->address, mark, held->size);
}

static void check(const struct held *held, size_t size)
{
    for (size_t position = 0; position < size; position++)
        CHECK(held->address[position] == held->mark);
}

static void let_go(struct held *held)
{
    check(held, held->size);
    memset(held->address, 0xee, held->size);
    if (held->holders & HEAP_BORN)
        heap_free(heap, held->address + (held->size ? held->size - 1 : 0));
    if (held->holders & HEAP_SEALED)
        CHECK(heap_release(heap, (size_t)((char *)held->address - memory), HEAP_SEALED));
    memset(held, 0, sizeof *held);
}

static void begin(struct held *held, unsigned seed, size_t size)
{
    size_t offset;
    held->size = size;
    held->holders = HEAP_BORN;
    switch (seed % 3) {
    case 0:
        held->address = heap_malloc(heap, size);
        break;
    case 1:
        held->address = heap_calloc(heap, size);
        if (held->address)
            check(held, size);
        break;
    default:
        offset = heap_allocate(heap, size, HEAP_SEALED);
        held->address = offset == HEAP_NONE ? NULL : (unsigned char *)memory + offset;
        held->holders = HEAP_SEALED;
    }
    if (!held->address)
        held->holders = 0;
}

static void change(struct held *held, unsigned seed, size_t size)
{
    struct heap_range range;
    size_t offset = (size_t)((char *)held->address - memory), old_size;
    if (seed % 2 && held->holders == HEAP_BORN) {
        void *moved = heap_realloc(heap, held->address, size, &old_size);
        CHECK(old_size == held->size);
        if (moved) {
            held->address = moved;
            check(held, size < old_size ? size : old_size);
            held->size = size;
        }
    } else if (held->holders == HEAP_BORN) {
        CHECK(heap_array_block(heap, held->address + held->size / 2, &range));
        CHECK(range.offset == offset && range.size == held->size);
        CHECK(heap_seal(heap, offset));
        CHECK(!heap_seal(heap, offset));
        held->holders |= HEAP_SEALED;
    } else if (held->holders == (HEAP_BORN | HEAP_SEALED)) {
        heap_free(heap, held->address);
        CHECK(!heap_array_block(heap, held->address, &range));
        held->holders = HEAP_SEALED;
    }
}

static void *hammer(void *argument)
{
    unsigned seed = (unsigned)(uintptr_t)argument;
    struct held all[HELD] = {{0}};
    for (int step = 0; step < steps; step++) {
        struct held *held = &all[rand_r(&seed) % HELD];
        size_t size = 1 + (size_t)rand_r(&seed) % (12 * HEAP_PAGE_BYTES);
        if (!held->holders)
            begin(held, (unsigned)rand_r(&seed), size);
        else if (rand_r(&seed) % 2)
            change(held, (unsigned)rand_r(&seed), size);
        else
            let_go(held);
        if (held->holders) {
            fill(held, (unsigned char)(1 + rand_r(&seed) % 200));
            check(held, held->size);
        }
        if (step % 97 == 0)
            heap_trim(heap);
    }
    for (int number = 0; number < HELD; number++)
        if (all[number].holders)
            let_go(&all[number]);
    return NULL;
}

static void fork_with_arrays(void)
{
    unsigned char *address = heap_malloc(heap, 3 * HEAP_PAGE_BYTES);
    int ready[2], status;
    char byte;
    memset(address, 1, 3 * HEAP_PAGE_BYTES);
    CHECK(!pipe(ready));
    pid_t child = fork();
    if (!child) {
        CHECK(read(ready[0], &byte, 1) == 1);
        for (size_t position = 0; position < 3 * HEAP_PAGE_BYTES; position++)
            CHECK(address[position] == 1);
        memset(address, 2, 3 * HEAP_PAGE_BYTES);
        heap_free(heap, address);
        CHECK(!heap_malloc(heap, 1));
        _exit(0);
    }
    memset(address, 3, 3 * HEAP_PAGE_BYTES);
    CHECK(write(ready[1], "", 1) == 1);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(address[0] == 3 && address[3 * HEAP_PAGE_BYTES - 1] == 3);
    heap_free(heap, address);
    close(ready[0]);
    close(ready[1]);
}

int main(int count, char **arguments)
{
    pthread_t threads[THREADS];
    size_t ranges_count;
    int file = memfd_create("heap-stress", 0);
    steps = count > 1 ? atoi(arguments[1]) : 20000;
    CHECK(file >= 0 && !ftruncate(file, (off_t)CAPACITY));
    memory = mmap(NULL, CAPACITY, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    CHECK(memory != MAP_FAILED);
    struct heap_range live = {7 * HEAP_PAGE_BYTES, 100};
    heap = heap_create(memory, CAPACITY, &live, 1);
    CHECK(heap);
    heap_trim(heap);
    for (uintptr_t number = 0; number < THREADS; number++)
        CHECK(!pthread_create(&threads[number], NULL, hammer, (void *)(number + 1)));
    for (int number = 0; number < THREADS; number++)
        CHECK(!pthread_join(threads[number], NULL));
    CHECK(heap_used_bytes(heap) == HEAP_PAGE_BYTES);
    fork_with_arrays();
    CHECK(heap_release(heap, live.offset, HEAP_SEALED));
    CHECK(!heap_release(heap, live.offset, HEAP_SEALED));
    struct heap_range *ranges = heap_ranges(heap, 0, &ranges_count);
    CHECK(ranges && ranges_count == 1 && ranges[0].size == CAPACITY && heap_largest_free(heap) == CAPACITY);
    free(ranges);
    heap_destroy(heap);
    munmap(memory, CAPACITY);
    close(file);
    return 0;
}
