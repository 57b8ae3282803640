/* Quota of a worker: the memory that it may take, and requests for more.
 *
 * The engine grants each worker a number of bytes by which its memory may grow while an operand runs. Allocations
 * within the quota cost a comparison. Larger ones write a request into shared memory, wake the engine, and wait until
 * it grants or refuses the request, or cancels the operand. This module does not depend on Python.
 */

#ifndef DASK_MARS_QUOTA_H
#define DASK_MARS_QUOTA_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "_heap.h"

/* Why a wait has ended without what was asked for. */
enum quota_refusal { QUOTA_NONE = 0, QUOTA_REFUSED = 1, QUOTA_POSTPONED = 2, QUOTA_STOPPED = 3 };

/* Of small objects, which take what they were refused. */
enum quota_excess {
    EXCESS_NONE,
    /* The task is to be told. */
    EXCESS_TAKEN,
    /* The task was told. */
    EXCESS_RAISED,
};

/* A worker's part of the control page, as `protocol/control.py` lays it out. */
struct quota_page {
    uint32_t running_graph;
    uint32_t other[2];
    uint8_t step;
    uint8_t unused[3];
    uint32_t stop_graph;
    uint32_t recalls;
    uint64_t granted;
    uint64_t asked;
    uint32_t refusal;
    /* Free pages are wanted elsewhere. */
    uint32_t eager;
    uint64_t held;
    uint64_t private_growth;
};

struct quota {
    struct heap *heap;
    volatile struct quota_page *page;
    /* A byte written there wakes the engine. */
    int wake;
    pid_t owner;
    pid_t engine;
    /* One thread asks at a time. */
    pthread_mutex_t asking;
    /* Private memory that was asked for: of arrays for which the arena had no room, and of Python's objects. It is
     * negative where blocks are freed that were taken before any were counted. */
    ptrdiff_t private_bytes;
    /* What was held when the operand began, and what of it was private. */
    size_t base;
    ptrdiff_t private_base;
    /* What was last seen of the page's flag. */
    uint32_t is_eager;
    enum quota_refusal refusal;
    size_t refused_bytes;
    /* Whether small objects have taken memory all the same, and how much they had when they were refused it. */
    enum quota_excess excess;
    size_t refused_growth;
};

void quota_init(struct quota *quota, struct heap *heap, void *page, int wake, pid_t engine);
void quota_destroy(struct quota *quota);

/* Begin an operand: its growth counts from now on. The current size of arrays is reported to the engine. */
void quota_begin(struct quota *quota);

/* Bytes that have grown are counted elsewhere from now on. */
void quota_excuse(struct quota *quota, size_t size);

/* Return whether so many bytes more may be taken; where they are beyond the quota, wait for the engine's answer. */
int quota_admit(struct quota *quota, size_t size);

/* Return whether so many bytes more are within the quota. */
int quota_has_room(struct quota *quota, size_t size);

/* Return whether a result is being put into the store. */
int quota_is_sealing(const struct quota *quota);

/* Return whether small objects may ask for so many bytes more: once they were refused, and the task has been told, they
 * take what they need to be freed, until there is room again. */
int quota_may_grow(struct quota *quota, size_t size);

/* What small objects were refused they take all the same. Return whether that is news. */
int quota_exceed(struct quota *quota);

/* Return whether the task is to be told that its small objects were refused, which is done once; by the second, only
 * if the task is being computed and they have taken so many bytes since. */
int quota_raise_exceeded(struct quota *quota);
int quota_raise_past(struct quota *quota, size_t most);

/* What was refused was more than was needed. */
void quota_forget_refusal(struct quota *quota);

/* Return whether free pages are wanted elsewhere, and give those back that the C library keeps. */
int quota_is_eager(const struct quota *quota);
void quota_trim_private(void);

/* Why growth was refused since the operand began, and to how many bytes it was to grow. */
enum quota_refusal quota_refusal(struct quota *quota, size_t *refused_bytes);

/* By how much memory has grown since the operand began. */
size_t quota_growth(struct quota *quota);

/* Tell the engine what arrays have of the arena that the store does not count. */
void quota_publish(struct quota *quota);

/* Note private memory that was taken, and that was freed, and tell the engine. */
void quota_note_private(struct quota *quota, size_t taken, size_t freed);

#endif
