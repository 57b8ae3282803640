/* Sums of short rows, of results, of rows in groups, of numbers in groups, and of tables: see `_sums.h`.
 *
 * NumPy's loop takes about as long to begin a row as to add up sixty numbers, and adds one row at a time. */

#include "_sums.h"

#include <math.h>
#include <string.h>

#include "_vectorised.h"

/* Numbers between those that are added and those that are fetched meanwhile. */
#define AHEAD 256
/* NumPy sums pairwise: it halves a run until it has at most FEW numbers, which it adds in FEW_LANES partial sums. */
#define FEW 128
#define FEW_LANES 8
/* Rows whose places are in the first-level cache. */
#define PLACES 2048
/* Runs of FEW numbers, or rows, that are added at a time. */
#define RUNS 4
#define INLINED static inline __attribute__((always_inline))

VECTORISED static int add_row(const double *row, ptrdiff_t count, int first, double *totals)
{
    /* Integers of the numbers' width: comparisons and their sum are then vectorised. */
    int64_t odd = 0;
    for (ptrdiff_t at = 0; at < count; at++) {
        totals[at] = (first ? 0.0 : totals[at]) + row[at];
        odd |= totals[at] != totals[at];
    }
    return odd != 0;
}

int add_to_groups(const char *rows, ptrdiff_t count, ptrdiff_t stride, ptrdiff_t length, const int64_t *groups,
                  const char *first, double *totals)
{
    int odd = 0;
    for (ptrdiff_t row = 0; row < count && !odd; row++)
        odd = add_row((const double *)(rows + row * stride), length, first[row], totals + groups[row] * length);
    return odd;
}

VECTORISED void key_range(const int64_t *keys, ptrdiff_t count, int64_t *low, int64_t *high)
{
    int64_t least = keys[0], most = keys[0];
    for (ptrdiff_t row = 1; row < count; row++) {
        least = keys[row] < least ? keys[row] : least;
        most = keys[row] > most ? keys[row] : most;
    }
    *low = least;
    *high = most;
}

VECTORISED static void add_to_places(const struct key *key, ptrdiff_t begin, ptrdiff_t count, int32_t *places)
{
    const int64_t *numbers = key->numbers + begin;
    uint64_t low = (uint64_t)key->low, size = (uint64_t)key->size;
    for (ptrdiff_t row = 0; row < count; row++) {
        /* Another thread may change the key meanwhile. */
        uint64_t offset = (uint64_t)numbers[row] - low;
        places[row] = places[row] * key->size + (offset < size ? (int32_t)offset : 0);
    }
}

static void add_doubles(const struct column *column, ptrdiff_t begin, ptrdiff_t count, const int32_t *restrict places)
{
    const double *restrict numbers = column->doubles + begin;
    double *restrict totals = column->totals, *restrict errors = column->errors;
    int64_t *restrict counts = column->counts;
    for (ptrdiff_t row = 0; row < count; row++) {
        int32_t at = places[row];
        double number = numbers[row];
        if (number != number)
            continue;
        double before = totals[at], added = number - errors[at], total = before + added;
        errors[at] = total - before - added;
        totals[at] = total;
        counts[at]++;
    }
}

static void add_integers(const struct column *column, ptrdiff_t begin, ptrdiff_t count, const int32_t *restrict places)
{
    const int64_t *restrict numbers = column->integers + begin;
    uint64_t *restrict totals = column->totals;
    int64_t *restrict counts = column->counts;
    for (ptrdiff_t row = 0; row < count; row++) {
        totals[places[row]] += (uint64_t)numbers[row];
        counts[places[row]]++;
    }
}

ptrdiff_t add_groups(const struct key *keys, int key_count, struct column *columns, ptrdiff_t column_count,
                     ptrdiff_t rows, int32_t *first)
{
    int32_t places[PLACES], before = -1;
    ptrdiff_t runs = 0;
    for (ptrdiff_t begin = 0, count; begin < rows; begin += count) {
        count = rows - begin < PLACES ? rows - begin : PLACES;
        memset(places, 0, sizeof places);
        for (int key = 0; key < key_count; key++)
            add_to_places(keys + key, begin, count, places);
        for (ptrdiff_t row = 0; row < count; row++) {
            runs += places[row] != before;
            before = places[row];
            if (!first[before])
                first[before] = (int32_t)(begin + row) + 1;
        }
        for (ptrdiff_t column = 0; column < column_count; column++)
            (columns[column].doubles ? add_doubles : add_integers)(columns + column, begin, count, places);
    }
    return runs;
}

typedef double lanes __attribute__((vector_size(FEW_LANES * sizeof(double)), aligned(sizeof(double)), may_alias));
typedef int64_t masks __attribute__((vector_size(FEW_LANES * sizeof(int64_t))));

#define NEUTRAL {-0.0, -0.0, -0.0, -0.0, -0.0, -0.0, -0.0, -0.0}
#define TOGETHER(own) ((((own)[0] + (own)[1]) + ((own)[2] + (own)[3])) + (((own)[4] + (own)[5]) + ((own)[6] + (own)[7])))

/* Defines the sums of rows of numbers of one type. RUNS rows are added at a time: one would wait for each addition to end
 * before the next. */
#define ROW_SUMS(type)                                                                                               \
    typedef type type##_lanes                                                                                        \
        __attribute__((vector_size(FEW_LANES * sizeof(type)), aligned(sizeof(type)), may_alias));                    \
    INLINED void type##_few_of_rows(const type *rows, ptrdiff_t length, ptrdiff_t count, int together, type *sums)   \
    {                                                                                                                \
        type##_lanes own[RUNS];                                                                                      \
        ptrdiff_t ahead = together * length < AHEAD ? AHEAD : together * length, at = FEW_LANES;                     \
        for (int row = 0; count < FEW_LANES && row < together; row++) {                                              \
            sums[row] = rows[row * length];                                                                          \
            for (at = 1; at < count; at++)                                                                           \
                sums[row] += rows[row * length + at];                                                                \
        }                                                                                                            \
        if (count < FEW_LANES)                                                                                       \
            return;                                                                                                  \
        for (int row = 0; row < together; row++)                                                                     \
            own[row] = *(const type##_lanes *)(rows + row * length);                                                 \
        for (; at + FEW_LANES <= count; at += FEW_LANES)                                                             \
            for (int row = 0; row < together; row++) {                                                               \
                __builtin_prefetch(rows + row * length + at + ahead);                                                \
                own[row] += *(const type##_lanes *)(rows + row * length + at);                                       \
            }                                                                                                        \
        for (int row = 0; row < together; row++)                                                                     \
            sums[row] = TOGETHER(own[row]);                                                                          \
        for (; at < count; at++)                                                                                     \
            for (int row = 0; row < together; row++)                                                                 \
                sums[row] += rows[row * length + at];                                                                \
    }                                                                                                                \
    VECTORISED static void type##_rows_halved(const type *rows, ptrdiff_t length, ptrdiff_t count, type *sums)       \
    {                                                                                                                \
        if (count <= FEW) {                                                                                          \
            type##_few_of_rows(rows, length, count, RUNS, sums);                                                     \
            return;                                                                                                  \
        }                                                                                                            \
        ptrdiff_t half = count / 2;                                                                                  \
        type others[RUNS];                                                                                           \
        half -= half % FEW_LANES;                                                                                    \
        type##_rows_halved(rows, length, half, sums);                                                                \
        type##_rows_halved(rows + half, length, count - half, others);                                               \
        for (int row = 0; row < RUNS; row++)                                                                         \
            sums[row] += others[row];                                                                                \
    }                                                                                                                \
    VECTORISED static type type##_row_halved(const type *row, ptrdiff_t count)                                       \
    {                                                                                                                \
        if (count > FEW) {                                                                                           \
            ptrdiff_t half = count / 2;                                                                              \
            half -= half % FEW_LANES;                                                                                \
            type first = type##_row_halved(row, half);                                                               \
            return first + type##_row_halved(row + half, count - half);                                              \
        }                                                                                                            \
        type sum;                                                                                                    \
        type##_few_of_rows(row, count, count, 1, &sum);                                                              \
        return sum;                                                                                                  \
    }                                                                                                                \
    VECTORISED void add_##type##_rows(const type *rows, ptrdiff_t count, ptrdiff_t length, char *totals,             \
                                      ptrdiff_t stride)                                                              \
    {                                                                                                                \
        ptrdiff_t done = 0;                                                                                          \
        for (; done + RUNS <= count; done += RUNS, rows += RUNS * length) {                                          \
            type sums[RUNS];                                                                                         \
            if (length <= FEW)                                                                                       \
                type##_few_of_rows(rows, length, length, RUNS, sums);                                                \
            else                                                                                                     \
                type##_rows_halved(rows, length, length, sums);                                                      \
            for (int row = 0; row < RUNS; row++, totals += stride)                                                   \
                *(type *)totals += sums[row];                                                                        \
        }                                                                                                            \
        for (; done < count; done++, rows += length, totals += stride)                                               \
            *(type *)totals += type##_row_halved(rows, length);                                                      \
    }

ROW_SUMS(float)
ROW_SUMS(double)

/* Defines a `pair_sum`; some operations ignore the second number. Four runs are added at a time: one would wait for each
 * addition to end before the next. */
#define SUM_OF(name, of_numbers, of_lanes)                                                                           \
    VECTORISED static double name##_few(const double *first, const double *second, ptrdiff_t count)                  \
    {                                                                                                                \
        lanes sums = NEUTRAL;                                                                                        \
        ptrdiff_t at = 0;                                                                                            \
        for (; at + FEW_LANES <= count; at += FEW_LANES) {                                                           \
            lanes x = *(const lanes *)(first + at), y = *(const lanes *)(second + at);                               \
            (void)y;                                                                                                 \
            sums += of_lanes;                                                                                        \
        }                                                                                                            \
        double total = TOGETHER(sums);                                                                               \
        for (; at < count; at++) {                                                                                   \
            double x = first[at], y = second[at];                                                                    \
            (void)y;                                                                                                 \
            total += of_numbers;                                                                                     \
        }                                                                                                            \
        return total;                                                                                                \
    }                                                                                                                \
    VECTORISED static double name##_runs(const double *first, const double *second, const double *one,               \
                                         const double *other)                                                        \
    {                                                                                                                \
        lanes sums[RUNS] = {NEUTRAL, NEUTRAL, NEUTRAL, NEUTRAL};                                                     \
        for (ptrdiff_t at = 0; at < FEW; at += FEW_LANES)                                                            \
            for (int run = 0; run < RUNS; run++) {                                                                   \
                lanes x = *(const lanes *)(first + run * FEW + at), y = *(const lanes *)(second + run * FEW + at);   \
                (void)y;                                                                                             \
                __builtin_prefetch(one + run * FEW + at);                                                            \
                __builtin_prefetch(other + run * FEW + at);                                                          \
                sums[run] += of_lanes;                                                                               \
            }                                                                                                        \
        return (TOGETHER(sums[0]) + TOGETHER(sums[1])) + (TOGETHER(sums[2]) + TOGETHER(sums[3]));                    \
    }                                                                                                                \
    double name(const double *first, const double *second, ptrdiff_t count, const double *const *ahead)              \
    {                                                                                                                \
        double total = -0.0;                                                                                         \
        ptrdiff_t at = 0;                                                                                            \
        for (; at + RUNS * FEW <= count; at += RUNS * FEW)                                                           \
            total += name##_runs(first + at, second + at, ahead[0] + at, ahead[1] + at);                             \
        for (ptrdiff_t part; at < count; at += part) {                                                               \
            part = count - at < FEW ? count - at : FEW;                                                              \
            for (ptrdiff_t line = at; line < at + part; line += FEW_LANES) {                                         \
                __builtin_prefetch(ahead[0] + line);                                                                 \
                __builtin_prefetch(ahead[1] + line);                                                                 \
            }                                                                                                        \
            total += name##_few(first + at, second + at, part);                                                      \
        }                                                                                                            \
        return total;                                                                                                \
    }

SUM_OF(sum_of_sums, x + y, x + y)
SUM_OF(sum_of_differences, x - y, x - y)
SUM_OF(sum_of_products, x *y, x *y)
SUM_OF(sum_of_absolutes, fabs(x), (lanes)((masks)x & INT64_MAX))
SUM_OF(sum_without_nan, x == x ? x : 0, (lanes)((masks)x & (x == x)))

/* Defines the sum of a table of numbers of one type; `rest` is the rest of its rows. */
#define TABLE_SUM(type)                                                                                              \
    struct type##_rest {                                                                                             \
        const type *at;                                                                                              \
        ptrdiff_t in_row, length, stride;                                                                            \
    };                                                                                                               \
    VECTORISED static type type##_few(const type *numbers, ptrdiff_t count, ptrdiff_t ahead)                         \
    {                                                                                                                \
        type lanes[FEW_LANES], total;                                                                                \
        for (int lane = 0; lane < FEW_LANES; lane++)                                                                 \
            lanes[lane] = numbers[lane];                                                                             \
        ptrdiff_t at = FEW_LANES;                                                                                    \
        for (; at + FEW_LANES <= count; at += FEW_LANES) {                                                           \
            /* The processor does not foresee where the next row begins. */                                          \
            __builtin_prefetch(numbers + ahead + at);                                                                \
            for (int lane = 0; lane < FEW_LANES; lane++)                                                             \
                lanes[lane] += numbers[at + lane];                                                                   \
        }                                                                                                            \
        total = TOGETHER(lanes);                                                                                     \
        for (; at < count; at++)                                                                                     \
            total += numbers[at];                                                                                    \
        return total;                                                                                                \
    }                                                                                                                \
    /* Return the next numbers: in place if they are within a row, otherwise copied. */                              \
    static const type *type##_taken(struct type##_rest *rest, ptrdiff_t count, type *copy)                           \
    {                                                                                                                \
        const type *numbers = rest->at;                                                                              \
        if (count <= rest->in_row) {                                                                                 \
            rest->at += count;                                                                                       \
            rest->in_row -= count;                                                                                   \
            return numbers;                                                                                          \
        }                                                                                                            \
        for (ptrdiff_t done = 0, part; done < count; done += part) {                                                 \
            if (!rest->in_row) {                                                                                     \
                rest->at += rest->stride - rest->length;                                                             \
                rest->in_row = rest->length;                                                                         \
            }                                                                                                        \
            part = count - done < rest->in_row ? count - done : rest->in_row;                                        \
            memcpy(copy + done, rest->at, (size_t)part * sizeof(type));                                              \
            rest->at += part;                                                                                        \
            rest->in_row -= part;                                                                                    \
        }                                                                                                            \
        return copy;                                                                                                 \
    }                                                                                                                \
    static type type##_halved(struct type##_rest *rest, ptrdiff_t count)                                             \
    {                                                                                                                \
        if (count > FEW) {                                                                                           \
            ptrdiff_t half = count / 2;                                                                              \
            half -= half % FEW_LANES;                                                                                \
            type first = type##_halved(rest, half);                                                                  \
            return first + type##_halved(rest, count - half);                                                        \
        }                                                                                                            \
        type copy[FEW];                                                                                              \
        return type##_few(type##_taken(rest, count, copy), count, rest->stride);                                     \
    }                                                                                                                \
    type type##_table_sum(const type *rows, ptrdiff_t count, ptrdiff_t length, ptrdiff_t stride, ptrdiff_t together) \
    {                                                                                                                \
        type total = 0;                                                                                              \
        for (ptrdiff_t row = 0; row < count; row += together) {                                                      \
            struct type##_rest rest = {rows + row * stride, length, length, stride};                                 \
            total += type##_halved(&rest, (count - row < together ? count - row : together) * length);               \
        }                                                                                                            \
        return total;                                                                                                \
    }

TABLE_SUM(float)
TABLE_SUM(double)
