/* How much memory a worker's arrays may take: its quota, and the wait for more.
 *
 * The engine grants each worker so many bytes by which its memory may grow while an operand runs. What is within that
 * costs a comparison. Whoever wants more says so in shared memory, wakes the engine, and waits until it has granted
 * more, has refused it, or wants the operand to stop. It knows nothing of Python.
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

/* A worker's part of the control page, as `protocol/control.py` lays it out. */
struct quota_page {
    uint32_t running_graph;
    uint32_t other[3];
    uint32_t stop_graph;
    uint32_t recalls;
    uint64_t granted;
    uint64_t asked;
    uint32_t refusal;
    /* Free pages are wanted elsewhere. */
    uint32_t eager;
    uint64_t held;
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
    /* Large blocks of private memory that arrays have because the arena had no room. */
    size_t private_bytes;
    /* What was held when the operand began. */
    size_t base;
    /* What was last seen of the page's flag. */
    uint32_t is_eager;
    enum quota_refusal refusal;
    size_t refused_bytes;
};

void quota_init(struct quota *quota, struct heap *heap, void *page, int wake, pid_t engine);
void quota_destroy(struct quota *quota);

/* An operand begins: from now on its growth counts. The engine is told what arrays have already. */
void quota_begin(struct quota *quota);

/* Bytes that have grown are counted elsewhere from now on. */
void quota_excuse(struct quota *quota, size_t size);

/* Return whether so many bytes more may be taken; where they are beyond the quota, wait for the engine's answer. */
int quota_admit(struct quota *quota, size_t size);

/* Why growth was refused since the operand began, and to how many bytes it was to grow. */
enum quota_refusal quota_refusal(struct quota *quota, size_t *refused_bytes);

/* By how much memory has grown since the operand began. */
size_t quota_growth(struct quota *quota);

/* Tell the engine what arrays have of the arena that the store does not count. */
void quota_publish(struct quota *quota);

/* Note that an array has got, or has given back, private memory. */
void quota_note_private(struct quota *quota, size_t taken, size_t freed);

#endif
