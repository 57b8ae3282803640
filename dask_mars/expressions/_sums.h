/* Sums of short rows, and of rows in groups. */

#ifndef DASK_MARS_SUMS_H
#define DASK_MARS_SUMS_H

#include <stddef.h>
#include <stdint.h>

/* Maximum length of a row: for longer ones NumPy's loop is as fast. */
#define LONGEST_SUMMED_ROW 1024

/* Add the sum of each row to a total. Rows are contiguous; totals are `stride` bytes apart. */
void add_row_sums(const double *rows, ptrdiff_t count, ptrdiff_t length, char *totals, ptrdiff_t stride);

/* Add rows, which are `stride` bytes apart, to the totals of their groups; the `first` row of a group is added to zero.
 * Return whether a total is NaN. */
int add_to_groups(const char *rows, ptrdiff_t count, ptrdiff_t stride, ptrdiff_t length, const int64_t *groups,
                  const char *first, double *totals);

#endif
