/* Sums of columns, and of their squared differences to the means: see `_moments.h`.
 *
 * Chan, Golub and LeVeque (1983), "Algorithms for computing the sample variance": the moments of two parts give those
 * of both. A part is so small that it is in the second-level cache when it is read for the second time. */

#include "_moments.h"

#include "_vectorised.h"

#define COLUMNS 512

VECTORISED static void sum_differences(const double *values, int rows, int columns, ptrdiff_t stride,
                                       const double *pivots, double *totals)
{
    for (int column = 0; column < columns; column++)
        totals[column] = 0;
    for (int row = 0; row < rows; row++)
        for (int column = 0; column < columns; column++)
            totals[column] += values[row * stride + column] - pivots[column];
}

VECTORISED static void sum_squares(const double *values, int rows, int columns, ptrdiff_t stride, const double *means,
                                   double *squares)
{
    for (int column = 0; column < columns; column++)
        squares[column] = 0;
    for (int row = 0; row < rows; row++)
        for (int column = 0; column < columns; column++) {
            double difference = values[row * stride + column] - means[column];
            squares[column] += difference * difference;
        }
}

VECTORISED static void join(double rows, double before, int columns, const double *part_totals,
                            const double *part_squares, double *totals, double *squares)
{
    double weight = before > 0 ? before * rows / (before + rows) : 0, share = before > 0 ? 1 / before : 0;
    for (int column = 0; column < columns; column++) {
        double apart = part_totals[column] / rows - totals[column] * share;
        squares[column] += part_squares[column] + apart * apart * weight;
        totals[column] += part_totals[column];
    }
}

VECTORISED static void find_means(const double *totals, const double *pivots, double rows, int columns,
                                  double *means)
{
    for (int column = 0; column < columns; column++)
        means[column] = totals[column] / rows + pivots[column];
}

void add_moments(const double *values, ptrdiff_t rows, ptrdiff_t columns, ptrdiff_t rows_before, double *pivots,
                 double *totals, double *squares)
{
    double part_totals[COLUMNS], part_squares[COLUMNS], means[COLUMNS];
    for (ptrdiff_t row = 0; row < rows; row += MOMENTS_ROWS) {
        int height = rows - row < MOMENTS_ROWS ? (int)(rows - row) : MOMENTS_ROWS;
        for (ptrdiff_t column = 0; column < columns; column += COLUMNS) {
            int width = columns - column < COLUMNS ? (int)(columns - column) : COLUMNS;
            const double *part = values + row * columns + column;
            if (rows_before + row == 0) {
                /* The first rows get provisional pivots, their first row, to find their means. */
                sum_differences(part, height, width, columns, part, part_totals);
                find_means(part_totals, part, height, width, pivots + column);
            }
            sum_differences(part, height, width, columns, pivots + column, part_totals);
            find_means(part_totals, pivots + column, height, width, means);
            sum_squares(part, height, width, columns, means, part_squares);
            join(height, (double)(rows_before + row), width, part_totals, part_squares, totals + column,
                 squares + column);
        }
    }
}
