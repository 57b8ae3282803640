/* Numbers by chance, the same in each run, and checks, for the stress tests. */

#ifndef DASK_MARS_STRESS_H
#define DASK_MARS_STRESS_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
            abort(); \
        } \
    } while (0)

static inline uint64_t random_word(void)
{
    static uint64_t state = 88172645463325252u;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static inline double random_number(void)
{
    return (double)(random_word() >> 11) / 9007199254740992.0;
}

#endif
