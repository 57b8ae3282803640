/* Threads that take memory of one heap within a quota, and another one that grants and refuses growth as engines do.
 *
 * To be built with the address, undefined behaviour and thread sanitizers, or run under valgrind: see `test_c_stress.py`.
 */

#define _GNU_SOURCE
#include "../dask_mars/store/_quota.h"
#include "stress.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define CAPACITY ((size_t)4000 * HEAP_PAGE_BYTES)
#define THREADS 4
#define HELD 8

static struct heap *heap;
static struct quota quota;
static struct quota_page page;
static int steps;
static int done;
static size_t refused;

static void *engine(void *descriptor)
{
    char bytes[64];
    unsigned seed = 7;
    while (!__atomic_load_n(&done, __ATOMIC_ACQUIRE)) {
        if (read(*(int *)descriptor, bytes, sizeof bytes) <= 0)
            break;
        uint64_t asked = __atomic_load_n(&page.asked, __ATOMIC_ACQUIRE);
        if (!asked)
            continue;
        __atomic_store_n(&page.eager, rand_r(&seed) % 2, __ATOMIC_RELAXED);
        if (rand_r(&seed) % 4)
            __atomic_store_n(&page.granted, asked, __ATOMIC_RELEASE);
        else
            __atomic_store_n(&page.refusal, QUOTA_REFUSED, __ATOMIC_RELEASE);
    }
    return NULL;
}

static void *work(void *number)
{
    unsigned seed = (unsigned)(size_t)number;
    struct {
        unsigned char *address;
        size_t size;
    } held[HELD];
    memset(held, 0, sizeof held);
    for (int step = 0; step < steps; step++) {
        int place = (int)(rand_r(&seed) % HELD);
        if (held[place].address) {
            CHECK(held[place].address[held[place].size - 1] == (unsigned char)(size_t)number);
            heap_free(heap, held[place].address);
            held[place].address = NULL;
        }
        size_t size = 1 + rand_r(&seed) % (100 * HEAP_PAGE_BYTES);
        if (!quota_admit(&quota, size)) {
            size_t bytes;
            CHECK(quota_refusal(&quota, &bytes) != QUOTA_NONE);
            __atomic_add_fetch(&refused, 1, __ATOMIC_RELAXED);
            continue;
        }
        held[place].address = heap_malloc(heap, size);
        if (held[place].address) {
            held[place].size = size;
            memset(held[place].address, (int)(size_t)number, size);
        } else
            quota_note_private(&quota, size, size);
        /* Sooner or later somebody has to ask again. */
        if (step % 64 == 0)
            __atomic_store_n(&page.granted, quota_growth(&quota) / 2, __ATOMIC_RELEASE);
    }
    for (int place = 0; place < HELD; place++)
        if (held[place].address)
            heap_free(heap, held[place].address);
    return NULL;
}

int main(int count, char **arguments)
{
    int ends[2];
    pthread_t threads[THREADS], answering;
    steps = count > 1 ? atoi(arguments[1]) : 1000;
    char *memory = mmap(NULL, CAPACITY, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    heap = heap_create(memory, CAPACITY, NULL, 0);
    CHECK(heap && !pipe(ends));
    quota_init(&quota, heap, &page, ends[1], getppid());
    CHECK(!pthread_create(&answering, NULL, engine, &ends[0]));
    for (size_t number = 0; number < THREADS; number++)
        CHECK(!pthread_create(&threads[number], NULL, work, (void *)(number + 1)));
    for (size_t number = 0; number < THREADS; number++)
        pthread_join(threads[number], NULL);
    __atomic_store_n(&done, 1, __ATOMIC_RELEASE);
    CHECK(write(ends[1], "", 1) == 1);
    pthread_join(answering, NULL);
    CHECK(heap_used_bytes(heap) == 0);
    CHECK(heap_born_bytes(heap) == 0);
    CHECK(refused > 0);
    quota_destroy(&quota);
    heap_destroy(heap);
    munmap(memory, CAPACITY);
    close(ends[0]);
    close(ends[1]);
    return 0;
}
