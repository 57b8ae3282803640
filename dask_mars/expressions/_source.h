/* A generator of numbers, which one extension passes to another in a capsule. One thread at a time may use a source. */

#ifndef DASK_MARS_SOURCE_H
#define DASK_MARS_SOURCE_H

#include <stddef.h>

#define SOURCE_CAPSULE "dask_mars.expressions.source"

struct source {
    /* Bytes of a number, and whether it is a double. */
    size_t item;
    int is_double;
    /* Number of remaining numbers. */
    size_t left;
    /* Generate the next numbers, no more than remain. The GIL need not be held. */
    void (*fill)(struct source *source, void *out, size_t count);
};

#endif
