/* Sums of short rows, of rows in groups, and of tables. */

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

/* Minimum length of a row of a table. */
#define LEAST_TABLE_ROW 8

/* Add up a table of contiguous rows, `stride` numbers apart, in NumPy's order. `together` is the number of rows that
 * NumPy's buffer holds. */
double table_sum(const double *rows, ptrdiff_t count, ptrdiff_t length, ptrdiff_t stride, ptrdiff_t together);

#endif
