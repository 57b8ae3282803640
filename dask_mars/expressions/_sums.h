/* Sums of short rows. */

#ifndef DASK_MARS_SUMS_H
#define DASK_MARS_SUMS_H

#include <stddef.h>

/* Maximum length of a row: for longer ones NumPy's loop is as fast. */
#define LONGEST_SUMMED_ROW 1024

/* Add the sum of each row to a total. Rows are contiguous; totals are `stride` bytes apart. */
void add_row_sums(const double *rows, ptrdiff_t count, ptrdiff_t length, char *totals, ptrdiff_t stride);

#endif
