/* Numbers counted by bins. */

#ifndef DASK_MARS_HISTOGRAM_H
#define DASK_MARS_HISTOGRAM_H

#include <stddef.h>
#include <stdint.h>

/* Bins of a histogram; the last one has its upper edge, too. */
struct bins {
    ptrdiff_t count;
    /* The edges, which do not fall, are finite, and not all the same: count + 1 of them. */
    const double *edges;
    /* Whether the computed place is off by at most one, as NumPy assumes for bins of equal width. Otherwise the search
     * starts there. */
    int regular;
};

/* Add to each count the numbers that are in its bin. Returns -1 if there is no memory. */
int count_in_bins(const struct bins *bins, const double *values, ptrdiff_t value_count, int64_t *counts);

#endif
