/* Adds rows of all kinds to sums of columns and compares with sums over all rows at once; for the sanitizers.
 * Argument: how many arrays. */

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "../dask_mars/expressions/_moments.h"
#include "stress.h"

static int check(ptrdiff_t rows, ptrdiff_t columns, ptrdiff_t part)
{
    double *values = malloc((size_t)(rows * columns) * sizeof *values);
    double *totals = calloc((size_t)columns, sizeof *totals), *squares = calloc((size_t)columns, sizeof *squares);
    double *pivots = calloc((size_t)columns, sizeof *pivots);
    for (ptrdiff_t at = 0; at < rows * columns; at++)
        values[at] = random_number() + 100.0;
    for (ptrdiff_t row = 0; row < rows; row += part)
        add_moments(values + row * columns, rows - row < part ? rows - row : part, columns, row, pivots, totals, squares);
    int failed = 0;
    for (ptrdiff_t column = 0; column < columns; column++) {
        double total = 0, square = 0;
        for (ptrdiff_t row = 0; row < rows; row++)
            total += values[row * columns + column];
        for (ptrdiff_t row = 0; row < rows; row++) {
            double difference = values[row * columns + column] - total / (double)rows;
            square += difference * difference;
        }
        failed |= fabs(totals[column] + (double)rows * pivots[column] - total) > 1e-12 * total || fabs(squares[column] - square) > 1e-9 * (1 + square);
    }
    free(values);
    free(pivots);
    free(totals);
    free(squares);
    return failed;
}

int main(int argument_count, char **arguments)
{
    int rounds = argument_count > 1 ? atoi(arguments[1]) : 1000;
    for (int round = 0; round < rounds; round++) {
        ptrdiff_t rows = (ptrdiff_t)(random_word() % 100), columns = 1 + (ptrdiff_t)(random_word() % 1100);
        ptrdiff_t part = 1 + (ptrdiff_t)(random_word() % 40);
        if (check(rows, columns, part)) {
            fprintf(stderr, "wrong: %td rows of %td columns by %td\n", rows, columns, part);
            return 1;
        }
    }
    return 0;
}
