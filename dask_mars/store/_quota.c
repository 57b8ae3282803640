#define _GNU_SOURCE
#include "_quota.h"

#include <time.h>
#include <unistd.h>

#ifdef __GLIBC__
#include <malloc.h>
#endif

/* Poll intervals for an answer, at first and later, and for the engine's liveness. */
#define FIRST_LOOK_NS 20000L
#define LAST_LOOK_NS 2000000L
#define LOOKS_BETWEEN_LIVENESS 64
/* As in `protocol/control.py`. */
#define STEP_COMPUTE 2
#define STEP_SEAL 3

void quota_init(struct quota *quota, struct heap *heap, void *page, int wake, pid_t engine)
{
    quota->heap = heap;
    quota->page = page;
    quota->wake = wake;
    quota->owner = getpid();
    quota->engine = engine;
    pthread_mutex_init(&quota->asking, NULL);
    quota->private_bytes = 0;
    quota->is_eager = 0;
    heap_watch(heap, &quota->page->eager);
    quota->refusal = QUOTA_NONE;
    quota->refused_bytes = 0;
    quota->excess = EXCESS_NONE;
    quota->refused_growth = 0;
    quota_begin(quota);
}

void quota_destroy(struct quota *quota)
{
    heap_watch(quota->heap, NULL);
    pthread_mutex_destroy(&quota->asking);
}

static ptrdiff_t private_bytes(const struct quota *quota)
{
    return __atomic_load_n(&quota->private_bytes, __ATOMIC_RELAXED);
}

static size_t held(struct quota *quota)
{
    ptrdiff_t bytes = (ptrdiff_t)heap_used_bytes(quota->heap) + private_bytes(quota);
    return bytes > 0 ? (size_t)bytes : 0;
}

static void publish_private(struct quota *quota)
{
    ptrdiff_t growth = private_bytes(quota) - __atomic_load_n(&quota->private_base, __ATOMIC_RELAXED);
    __atomic_store_n(&quota->page->private_growth, growth > 0 ? (uint64_t)growth : 0, __ATOMIC_RELAXED);
}

void quota_publish(struct quota *quota)
{
    __atomic_store_n(&quota->page->held, (uint64_t)heap_born_bytes(quota->heap), __ATOMIC_RELEASE);
}

void quota_begin(struct quota *quota)
{
    __atomic_store_n(&quota->base, held(quota), __ATOMIC_RELAXED);
    __atomic_store_n(&quota->private_base, private_bytes(quota), __ATOMIC_RELAXED);
    __atomic_store_n(&quota->refusal, QUOTA_NONE, __ATOMIC_RELAXED);
    __atomic_store_n(&quota->excess, EXCESS_NONE, __ATOMIC_RELAXED);
    quota_publish(quota);
    publish_private(quota);
}

enum quota_refusal quota_refusal(struct quota *quota, size_t *refused_bytes)
{
    enum quota_refusal refusal = __atomic_load_n(&quota->refusal, __ATOMIC_ACQUIRE);
    *refused_bytes = refusal == QUOTA_NONE ? 0 : __atomic_load_n(&quota->refused_bytes, __ATOMIC_RELAXED);
    return refusal;
}

void quota_excuse(struct quota *quota, size_t size)
{
    __atomic_add_fetch(&quota->base, size, __ATOMIC_RELAXED);
}

size_t quota_growth(struct quota *quota)
{
    size_t now = held(quota), base = __atomic_load_n(&quota->base, __ATOMIC_RELAXED);
    return now > base ? now - base : 0;
}

void quota_note_private(struct quota *quota, size_t taken, size_t freed)
{
    __atomic_add_fetch(&quota->private_bytes, (ptrdiff_t)taken - (ptrdiff_t)freed, __ATOMIC_RELAXED);
    /* A process that a task has forked counts for itself. */
    if (getpid() == quota->owner)
        publish_private(quota);
}

static uint64_t granted(const struct quota *quota)
{
    return __atomic_load_n(&quota->page->granted, __ATOMIC_ACQUIRE);
}

/* Check whether memory is short; if it has just become so, return the free pages to the system. */
static void heed_eagerness(struct quota *quota)
{
    uint32_t is_eager = __atomic_load_n(&quota->page->eager, __ATOMIC_RELAXED);
    if (is_eager != __atomic_exchange_n(&quota->is_eager, is_eager, __ATOMIC_RELAXED) && is_eager)
        heap_trim(quota->heap);
}

void quota_trim_private(void)
{
#ifdef __GLIBC__
    malloc_trim(0);
#endif
}

int quota_is_eager(const struct quota *quota)
{
    return __atomic_load_n(&quota->page->eager, __ATOMIC_RELAXED) != 0;
}

static void wake_engine(const struct quota *quota)
{
    /* A full pipe wakes the engine as well. */
    ssize_t written = write(quota->wake, "", 1);
    (void)written;
}

/* Wait for the answer to a request; return the reason for a refusal, `QUOTA_NONE` for a grant. */
static enum quota_refusal wait_for_answer(struct quota *quota, uint64_t wanted)
{
    volatile struct quota_page *page = quota->page;
    struct timespec pause = {0, FIRST_LOOK_NS};
    int is_trimmed = 0;
    for (unsigned looks = 1;; looks++) {
        if (granted(quota) >= wanted)
            return QUOTA_NONE;
        uint32_t refusal = __atomic_load_n(&page->refusal, __ATOMIC_ACQUIRE);
        if (refusal)
            return (enum quota_refusal)refusal;
        uint32_t stopped = __atomic_load_n(&page->stop_graph, __ATOMIC_RELAXED);
        if (stopped && stopped == __atomic_load_n(&page->running_graph, __ATOMIC_RELAXED))
            return QUOTA_STOPPED;
        if (looks % LOOKS_BETWEEN_LIVENESS == 0) {
            /* Without an engine there is no answer, and this process has to end. */
            if (getppid() != quota->engine)
                return QUOTA_STOPPED;
            /* The quota may have been raised and lowered again between two polls: repeat the request. */
            wake_engine(quota);
        }
        heed_eagerness(quota);
        /* Freed memory of the C library is warm for later allocations, so it is returned only if a worker waits. */
        if (!is_trimmed && quota_is_eager(quota)) {
            is_trimmed = 1;
            quota_trim_private();
        }
        nanosleep(&pause, NULL);
        if (pause.tv_nsec < LAST_LOOK_NS)
            pause.tv_nsec += pause.tv_nsec / 4;
    }
}

int quota_has_room(struct quota *quota, size_t size)
{
    return (uint64_t)quota_growth(quota) + size <= granted(quota);
}

static int is_at(const struct quota *quota, uint8_t step)
{
    return __atomic_load_n(&quota->page->step, __ATOMIC_RELAXED) == step;
}

int quota_is_sealing(const struct quota *quota)
{
    return is_at(quota, STEP_SEAL);
}

/* Change the state of the excess if it is `before`; return whether it was. */
static int change_excess(struct quota *quota, enum quota_excess before, enum quota_excess after)
{
    return __atomic_compare_exchange_n(&quota->excess, &before, after, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}

int quota_may_grow(struct quota *quota, size_t size)
{
    return __atomic_load_n(&quota->excess, __ATOMIC_ACQUIRE) == EXCESS_NONE
        || (quota_has_room(quota, size) && change_excess(quota, EXCESS_RAISED, EXCESS_NONE));
}

int quota_exceed(struct quota *quota)
{
    if (!change_excess(quota, EXCESS_NONE, EXCESS_TAKEN))
        return 0;
    __atomic_store_n(&quota->refused_growth, quota_growth(quota), __ATOMIC_RELAXED);
    return 1;
}

int quota_raise_exceeded(struct quota *quota)
{
    return change_excess(quota, EXCESS_TAKEN, EXCESS_RAISED);
}

int quota_raise_past(struct quota *quota, size_t most)
{
    size_t refused = __atomic_load_n(&quota->refused_growth, __ATOMIC_RELAXED);
    return quota_growth(quota) > refused + most && is_at(quota, STEP_COMPUTE) && quota_raise_exceeded(quota);
}

void quota_forget_refusal(struct quota *quota)
{
    __atomic_store_n(&quota->refusal, QUOTA_NONE, __ATOMIC_RELEASE);
}

int quota_admit(struct quota *quota, size_t size)
{
    volatile struct quota_page *page = quota->page;
    uint64_t wanted = (uint64_t)quota_growth(quota) + size;
    heed_eagerness(quota);
    if (wanted <= granted(quota))
        return 1;
    /* A process that a task has forked has its memory for itself, and the page is its parent's. */
    if (getpid() != quota->owner)
        return 1;
    pthread_mutex_lock(&quota->asking);
    wanted = (uint64_t)quota_growth(quota) + size;
    enum quota_refusal refusal = QUOTA_NONE;
    if (wanted > granted(quota)) {
        __atomic_store_n(&page->refusal, QUOTA_NONE, __ATOMIC_RELAXED);
        __atomic_store_n(&page->asked, wanted, __ATOMIC_RELEASE);
        wake_engine(quota);
        refusal = wait_for_answer(quota, wanted);
        __atomic_store_n(&page->asked, 0, __ATOMIC_RELEASE);
    }
    if (refusal != QUOTA_NONE) {
        __atomic_store_n(&quota->refused_bytes, wanted, __ATOMIC_RELAXED);
        __atomic_store_n(&quota->refusal, refusal, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&quota->asking);
    return refusal == QUOTA_NONE;
}
