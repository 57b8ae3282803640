/* Numbers by chance, the same in each run, for the stress tests. */

#ifndef DASK_MARS_STRESS_H
#define DASK_MARS_STRESS_H

#include <stdint.h>

static uint64_t random_word(void)
{
    static uint64_t state = 88172645463325252u;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static double random_number(void)
{
    return (double)(random_word() >> 11) / 9007199254740992.0;
}

#endif
