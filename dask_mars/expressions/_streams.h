/* NumPy's streams of random numbers, for its bit generator PCG64, bit for bit and many numbers at a time. */

#ifndef DASK_MARS_STREAMS_H
#define DASK_MARS_STREAMS_H

#include <stddef.h>
#include <stdint.h>

/* PCG64 (O'Neill 2014): a linear congruential generator of 128 bits whose state is folded into 64. */
typedef unsigned __int128 uint128;

struct stream {
    uint128 state, increment;
    /* A word makes two numbers of 32 bits, the low half first; `half` is the other one if `has_half`. */
    uint32_t half;
    int has_half;
};

/* Instruction sets for generating numbers. */
enum stream_level { STREAM_PORTABLE, STREAM_AVX512, STREAM_AVX512_IFMA, STREAM_LEVELS };

/* Distributions, by the names of NumPy's methods. */
enum stream_kind {
    STREAM_RANDOM,
    STREAM_RANDOM_FLOAT,
    STREAM_UNIFORM,
    STREAM_STANDARD_NORMAL,
    STREAM_NORMAL,
    STREAM_STANDARD_EXPONENTIAL,
    STREAM_EXPONENTIAL,
    STREAM_INTEGERS,
    STREAM_KINDS,
};

/* Return the best instruction set that this processor has. */
enum stream_level stream_best_level(void);

/* Seed a stream as NumPy does with the result of `SeedSequence.generate_state(4, uint64)`. */
void stream_seed(struct stream *stream, const uint64_t words[4]);

/* Learn the tables of NumPy's ziggurats from its own functions, which are used for the rare numbers as well.

   They take a `bitgen_t`, and are `random_standard_normal` and `random_standard_exponential`. */
void stream_learn(double (*normal)(void *), double (*exponential)(void *));

/* Fill memory with numbers: floats for `random_float`, `int64_t` for `integers`, else doubles.

   For `uniform` and `normal` numbers are `first + second * z`, for `exponential` `first * z`. */
void stream_fill(struct stream *stream, enum stream_kind kind, enum stream_level level, void *out, size_t count,
                 double first, double second);

/* Fill memory with integers from `low` to `low + range`, both included. */
void stream_integers(struct stream *stream, enum stream_level level, int64_t *out, size_t count, int64_t low,
                     uint32_t range);

#endif
