/* Sums of short rows, of rows in groups, of numbers in groups, and of tables. */

#ifndef DASK_MARS_SUMS_H
#define DASK_MARS_SUMS_H

#include <stddef.h>
#include <stdint.h>

/* A function that applies an operation to pairs of numbers and sums the results. It prefetches as many numbers from the
 * two places in `ahead`. */
typedef double pair_sum(const double *first, const double *second, ptrdiff_t count, const double *const *ahead);

pair_sum sum_of_sums, sum_of_differences, sum_of_products, sum_of_absolutes, sum_without_nan;

/* Maximum length of a row: for longer ones NumPy's loop is as fast. */
#define LONGEST_SUMMED_ROW 1024

/* Add the sum of each row, in NumPy's order, to a total. Rows are contiguous; totals are `stride` bytes apart. */
void add_float_rows(const float *rows, ptrdiff_t count, ptrdiff_t length, char *totals, ptrdiff_t stride);
void add_double_rows(const double *rows, ptrdiff_t count, ptrdiff_t length, char *totals, ptrdiff_t stride);

/* Add rows, which are `stride` bytes apart, to the totals of their groups; the `first` row of a group is added to zero.
 * Return whether a total is NaN. */
int add_to_groups(const char *rows, ptrdiff_t count, ptrdiff_t stride, ptrdiff_t length, const int64_t *groups,
                  const char *first, double *totals);

/* Find the smallest and the largest of at least one key. */
void key_range(const int64_t *keys, ptrdiff_t count, int64_t *low, int64_t *high);

/* A key: the lowest of its numbers, and the number of places in a table for them. */
struct key {
    const int64_t *numbers;
    int64_t low;
    int32_t size;
};

/* A column of doubles, or of integers, and its sums and counts of numbers that are not NaN for each place. Errors of
 * sums of doubles are compensated as by pandas. */
struct column {
    const double *doubles;
    const int64_t *integers;
    void *totals;
    double *errors;
    int64_t *counts;
};

/* Add the numbers of columns to the totals of their rows' places in a table of all combinations of keys, which also
 * gets the number of each place's first row, from one on. Return the number of runs of rows of one place. */
ptrdiff_t add_groups(const struct key *keys, int key_count, struct column *columns, ptrdiff_t column_count, ptrdiff_t rows,
               int32_t *first);

/* Minimum length of a row of a table. */
#define LEAST_TABLE_ROW 8

/* Add up a table of contiguous rows, `stride` numbers apart, in NumPy's order. `together` is the number of rows that
 * NumPy's buffer holds. */
float float_table_sum(const float *rows, ptrdiff_t count, ptrdiff_t length, ptrdiff_t stride, ptrdiff_t together);
double double_table_sum(const double *rows, ptrdiff_t count, ptrdiff_t length, ptrdiff_t stride, ptrdiff_t together);

#endif
