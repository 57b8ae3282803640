/* Sums of columns, and sums of their squared differences to the means. */

#ifndef DASK_MARS_MOMENTS_H
#define DASK_MARS_MOMENTS_H

#include <stddef.h>

/* Rows that are taken together. */
#define MOMENTS_ROWS 16

/* Add rows to what is known of those before them. Totals are those of the differences to the pivots, which are the means
 * of the first rows and are set with them: what is far from zero would lose its last digits. Nothing is said of numbers
 * that are not finite: they make sums that are not. */
void add_moments(const double *values, ptrdiff_t rows, ptrdiff_t columns, ptrdiff_t rows_before, double *pivots,
                 double *totals, double *squares);

#endif
