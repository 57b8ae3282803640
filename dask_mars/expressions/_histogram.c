/* Numbers counted by bins: see `_histogram.h`.
 *
 * The bin of a number is computed as if all bins had the same width, by NumPy's operations and with their rounding.
 * Then the number is compared with both edges of that bin. */

#include "_histogram.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "_vectorised.h"

#define BLOCK 1024
/* Number of tables of counts: consecutive numbers are often in one bin, and their additions would be serial. */
#define TABLES 4
#define MOST_IN_TABLES 4096

/* Numbers outside all bins get the index after the last bin. */
VECTORISED static void find_places(const struct bins *bins, const double *values, int count, int32_t *places)
{
    double first = bins->edges[0], last = bins->edges[bins->count], width = last - first, number = (double)bins->count;
    int32_t outside = (int32_t)bins->count;
    for (int at = 0; at < count; at++) {
        double value = values[at];
        int inside = (value >= first) & (value <= last);
        int32_t place = (int32_t)((inside ? value - first : 0.0) / width * number);
        /* The last edge is in the last bin. */
        place = place < outside ? place : outside - 1;
        places[at] = inside ? place : outside;
    }
}

VECTORISED static void correct_places(const double *lower, const double *upper, const double *values, int count,
                                      int32_t *places)
{
    for (int at = 0; at < count; at++) {
        int32_t place = places[at];
        places[at] = place - (values[at] < lower[place]) + (values[at] >= upper[place]);
    }
}

static void search_places(const double *lower, const double *upper, const double *values, int count, int32_t *places)
{
    for (int at = 0; at < count; at++) {
        int32_t place = places[at];
        while (values[at] < lower[place])
            place--;
        while (values[at] >= upper[place])
            place++;
        places[at] = place;
    }
}

int count_in_bins(const struct bins *bins, const double *values, ptrdiff_t value_count, int64_t *counts)
{
    size_t slots = (size_t)bins->count + 1;
    size_t tables = bins->count <= MOST_IN_TABLES ? TABLES : 1;
    double *lower = malloc(2 * slots * sizeof *lower);
    int64_t *found = calloc(tables * slots, sizeof *found);
    if (!lower || !found) {
        free(lower);
        free(found);
        return -1;
    }
    double *upper = lower + slots;
    memcpy(lower, bins->edges, slots * sizeof *lower);
    memcpy(upper, bins->edges + 1, (slots - 1) * sizeof *upper);
    /* Comparisons with NaN are false: numbers in the last bin and outside all bins are not moved up. */
    lower[slots - 1] = upper[slots - 1] = upper[slots - 2] = (double)NAN;
    int32_t places[BLOCK];
    for (ptrdiff_t start = 0; start < value_count; start += BLOCK) {
        int count = value_count - start < BLOCK ? (int)(value_count - start) : BLOCK;
        find_places(bins, values + start, count, places);
        (bins->regular ? correct_places : search_places)(lower, upper, values + start, count, places);
        int at = 0;
        for (; tables == TABLES && at + TABLES <= count; at += TABLES)
            for (int table = 0; table < TABLES; table++)
                found[(size_t)table * slots + (size_t)places[at + table]]++;
        for (; at < count; at++)
            found[places[at]]++;
    }
    for (size_t table = 0; table < tables; table++)
        for (size_t bin = 0; bin + 1 < slots; bin++)
            counts[bin] += found[table * slots + bin];
    free(lower);
    free(found);
    return 0;
}
