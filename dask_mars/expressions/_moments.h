/* Sums of columns, and sums of their squared differences to the means. */

#ifndef DASK_MARS_MOMENTS_H
#define DASK_MARS_MOMENTS_H

#include <stddef.h>

/* Number of rows that are added at a time. */
#define MOMENTS_ROWS 16

/* Add rows to the moments of the rows before. Totals are sums of differences to the pivots, the means of the first
 * rows, which the first call sets: sums of numbers far from zero would lose their last digits. Numbers that are not
 * finite make sums that are not finite. */
void add_moments(const double *values, ptrdiff_t rows, ptrdiff_t columns, ptrdiff_t rows_before, double *pivots,
                 double *totals, double *squares);

#endif
