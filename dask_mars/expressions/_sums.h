/* Sums of short rows. */

#ifndef DASK_MARS_SUMS_H
#define DASK_MARS_SUMS_H

#include <stddef.h>

/* Rows of this many numbers, and of more NumPy's loop is as fast. */
#define LONGEST_SUMMED_ROW 1024

/* Add the sum of each row, whose numbers lie one beside the other as the rows do, to a total; totals are so many bytes
 * apart. */
void add_row_sums(const double *rows, ptrdiff_t count, ptrdiff_t length, char *totals, ptrdiff_t stride);

#endif
