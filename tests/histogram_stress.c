/* Counts numbers in bins of all kinds and compares with a search from the first bin on; for the sanitizers.
 * Argument: how many histograms. */

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "../dask_mars/expressions/_histogram.h"
#include "stress.h"

static int check(int bins_count, int value_count, int regular)
{
    double *edges = malloc(((size_t)bins_count + 1) * sizeof *edges), *values = malloc((size_t)value_count * sizeof *values + 1);
    int64_t *counts = calloc((size_t)bins_count, sizeof *counts), *expected = calloc((size_t)bins_count, sizeof *expected);
    double low = random_number() - 0.5, width = random_number() + 0.1;
    for (int number = 0; number <= bins_count; number++)
        edges[number] = low + width * number;
    /* Some that are beside where they would be, two at the same place. */
    for (int number = 1; !regular && number < bins_count; number++)
        edges[number] = random_number() < 0.2 ? edges[number - 1] : edges[number] + 0.4 * width * random_number();
    for (int at = 0; at < value_count; at++) {
        int kind = (int)(random_word() % 16);
        values[at] = kind == 0   ? (double)NAN
                     : kind == 1 ? HUGE_VAL * (random_number() < 0.5 ? 1 : -1)
                     : kind < 8  ? edges[random_word() % ((uint64_t)bins_count + 1)]
                                 : low + width * (bins_count + 2) * random_number() - width;
        int bin = -1;
        for (int number = 0; number < bins_count; number++)
            if (values[at] >= edges[number] && (values[at] < edges[number + 1] || number == bins_count - 1))
                bin = number;
        if (bin >= 0 && values[at] <= edges[bins_count])
            expected[bin]++;
    }
    int failed = count_in_bins(&(struct bins){bins_count, edges, regular}, values, value_count, counts);
    for (int bin = 0; bin < bins_count; bin++)
        failed |= counts[bin] != expected[bin];
    free(edges);
    free(values);
    free(counts);
    free(expected);
    return failed;
}

int main(int argument_count, char **arguments)
{
    int rounds = argument_count > 1 ? atoi(arguments[1]) : 1000;
    for (int number = 0; number < rounds; number++)
        if (check(1 + (int)(random_word() % (number % 50 ? 70 : 9000)), (int)(random_word() % 3000), number % 2)) {
            fprintf(stderr, "histogram %d is wrong\n", number);
            return 1;
        }
    return 0;
}
