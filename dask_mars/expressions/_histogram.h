/* Numbers counted by bins. */

#ifndef DASK_MARS_HISTOGRAM_H
#define DASK_MARS_HISTOGRAM_H

#include <stddef.h>
#include <stdint.h>

/* Bins of a histogram; the last one includes its upper edge. */
struct bins {
    ptrdiff_t count;
    /* count + 1 edges: finite, in ascending order, and not all equal. */
    const double *edges;
    /* Whether the computed bin is off by at most one, as NumPy assumes for bins of equal width. Otherwise a search
     * starts there. */
    int regular;
};

/* Add to each count the numbers that are in its bin. Returns -1 if there is no memory. */
int count_in_bins(const struct bins *bins, const double *values, ptrdiff_t value_count, int64_t *counts);

#endif
