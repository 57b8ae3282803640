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

/* Reasons for the end of a wait without a grant. */
enum quota_refusal { QUOTA_NONE = 0, QUOTA_REFUSED = 1, QUOTA_POSTPONED = 2, QUOTA_STOPPED = 3 };

/* Memory that small objects took although it was refused. */
enum quota_excess {
    EXCESS_NONE,
    /* The task has to be interrupted. */
    EXCESS_TAKEN,
    /* The task was interrupted. */
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
    /* Memory is short: return free pages to the system at once. */
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
    /* Held by the thread whose request is pending. */
    pthread_mutex_t asking;
    /* Private memory that was requested: of arrays for which the arena had no room, and of Python's objects. It is
     * negative after frees of blocks from before the count began. */
    ptrdiff_t private_bytes;
    /* Bytes at the start of the operand: all, and private ones. */
    size_t base;
    ptrdiff_t private_base;
    /* Value of `page->eager` at the last check. */
    uint32_t is_eager;
    enum quota_refusal refusal;
    size_t refused_bytes;
    /* State of small objects' excess, and the growth at which they were refused more. */
    enum quota_excess excess;
    size_t refused_growth;
};

void quota_init(struct quota *quota, struct heap *heap, void *page, int wake, pid_t engine);
void quota_destroy(struct quota *quota);

/* Begin an operand: its growth counts from now on. Report the current size of arrays to the engine. */
void quota_begin(struct quota *quota);

/* Subtract bytes of growth that are counted elsewhere from now on. */
void quota_excuse(struct quota *quota, size_t size);

/* Return whether memory may grow by `size`; beyond the quota, wait for the engine's answer. */
int quota_admit(struct quota *quota, size_t size);

/* Return whether growth by `size` is within the quota. */
int quota_has_room(struct quota *quota, size_t size);

/* Return whether a result is being put into the store. */
int quota_is_sealing(const struct quota *quota);

/* Return whether small objects may request `size` more bytes. After a refusal they may not, and take what the
 * interrupted task needs to end, until there is room again. */
int quota_may_grow(struct quota *quota, size_t size);

/* Record that small objects take memory that was refused. Return whether this is the first time. */
int quota_exceed(struct quota *quota);

/* Return whether to interrupt the task because its small objects were refused memory: true once. The second function
 * also requires that a task is being computed and that they have taken more than `most` bytes since. */
int quota_raise_exceeded(struct quota *quota);
int quota_raise_past(struct quota *quota, size_t most);

/* Forget a refusal of more than was needed. */
void quota_forget_refusal(struct quota *quota);

/* Return whether memory is short; and return the free memory of the C library to the system. */
int quota_is_eager(const struct quota *quota);
void quota_trim_private(void);

/* Return the reason for a refusal since the operand began, and the growth that was requested. */
enum quota_refusal quota_refusal(struct quota *quota, size_t *refused_bytes);

/* Return the growth of memory since the operand began. */
size_t quota_growth(struct quota *quota);

/* Report to the engine the bytes of the arena that arrays own and the store does not count. */
void quota_publish(struct quota *quota);

/* Count private memory that was taken and freed, and report it to the engine. */
void quota_note_private(struct quota *quota, size_t taken, size_t freed);

#endif
