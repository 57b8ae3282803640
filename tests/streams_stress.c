/* Compares `_streams.c` with one number after the other, for all kinds, levels and lengths; for sanitizers. */

#include "../dask_mars/expressions/_streams.h"

#include <numpy/random/bitgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const uint128 MULTIPLIER = ((uint128)2549297995355413924ULL << 64) | 4865540595714422341ULL;

static uint64_t next(void *state)
{
    struct stream *stream = state;
    stream->state = stream->state * MULTIPLIER + stream->increment;
    uint64_t high = (uint64_t)(stream->state >> 64), value = high ^ (uint64_t)stream->state;
    unsigned by = (unsigned)(high >> 58);
    return value >> by | value << (-by & 63);
}

static uint32_t next_half(void *state)
{
    struct stream *stream = state;
    if (stream->has_half) {
        stream->has_half = 0;
        return stream->half;
    }
    uint64_t word = next(stream);
    stream->half = (uint32_t)(word >> 32);
    stream->has_half = 1;
    return (uint32_t)word;
}

static double next_double(void *state)
{
    return (double)(next(state) >> 11) * 0x1p-53;
}

/* Functions of the form of NumPy's: a word may be enough, or it takes others, more than one now and then. */

static double normal(void *argument)
{
    bitgen_t *generator = argument;
    for (;;) {
        uint64_t word = generator->next_uint64(generator->state), layer = word & 0xff;
        uint64_t rest = word >> 9 & 0xfffffffffffffULL;
        double x = (double)rest * (1 + (double)layer) * 0x1p-60;
        x = word & 0x100 ? -x : x;
        if (layer != 1 && rest < 0xfffffffffffffULL - (layer << 40))
            return x;
        if (generator->next_double(generator->state) < 0.75)
            return x;
    }
}

static double exponential(void *argument)
{
    bitgen_t *generator = argument;
    for (;;) {
        uint64_t word = generator->next_uint64(generator->state), layer = word >> 3 & 0xff, rest = word >> 11;
        double x = (double)rest * (1 + (double)layer) * 0x1p-60;
        if (layer != 1 && rest < 0x1fffffffffffffULL - (layer << 40))
            return x;
        if (generator->next_double(generator->state) < 0.75)
            return x;
    }
}

static void expect(struct stream *stream, enum stream_kind kind, void *out, size_t count)
{
    bitgen_t generator = {stream, next, next_half, next_double, next};
    double *numbers = out;
    for (size_t at = 0; at < count; at++)
        switch (kind) {
        case STREAM_RANDOM:
            numbers[at] = next_double(stream);
            break;
        case STREAM_RANDOM_FLOAT:
            ((float *)out)[at] = (float)(next_half(stream) >> 8) * 0x1p-24f;
            break;
        case STREAM_UNIFORM:
            numbers[at] = -1.5 + 3.1 * next_double(stream);
            break;
        case STREAM_STANDARD_NORMAL:
            numbers[at] = normal(&generator);
            break;
        case STREAM_NORMAL:
            numbers[at] = -1.5 + 3.1 * normal(&generator);
            break;
        case STREAM_STANDARD_EXPONENTIAL:
            numbers[at] = exponential(&generator);
            break;
        default:
            numbers[at] = -1.5 * exponential(&generator);
        }
}

static void expect_integers(struct stream *stream, int64_t *out, size_t count, int64_t low, uint32_t range)
{
    uint64_t numbers = (uint64_t)range + 1;
    for (size_t at = 0; at < count; at++) {
        uint64_t product = 0;
        if (range)
            do
                product = next_half(stream) * numbers;
            while ((uint32_t)product < (1ULL << 32) % numbers);
        out[at] = low + (int64_t)(product >> 32);
    }
}

static void compare(const struct stream *left, const struct stream *right, const void *first, const void *second,
                    size_t bytes)
{
    if (left->state != right->state || left->has_half != right->has_half || left->half != right->half
        || memcmp(first, second, bytes)) {
        fprintf(stderr, "they differ\n");
        exit(1);
    }
}

int main(int count, char **arguments)
{
    static const uint32_t ranges[] = {0, 1, 6, 1000, 3000000000, UINT32_MAX - 1, UINT32_MAX};
    size_t longest = count > 1 ? strtoul(arguments[1], NULL, 10) : 2100;
    stream_learn(normal, exponential);
    for (int level = 0; level <= (int)stream_best_level(); level++) {
        uint64_t words[4] = {1, 2, 3, 4};
        struct stream stream, plain;
        stream_seed(&stream, words);
        plain = stream;
        for (size_t length = 0; length <= longest; length += length < 70 ? 1 : 101) {
            /* Exactly as long as needed, so that what is written beside them is found. */
            void *made = malloc(length * 8 + 1), *expected = malloc(length * 8 + 1);
            for (int kind = 0; kind < STREAM_INTEGERS; kind++) {
                size_t item = kind == STREAM_RANDOM_FLOAT ? 4 : 8;
                stream_fill(&stream, kind, level, made, length, -1.5, 3.1);
                expect(&plain, kind, expected, length);
                compare(&stream, &plain, made, expected, length * item);
            }
            for (size_t at = 0; at < sizeof(ranges) / sizeof(*ranges); at++) {
                stream_integers(&stream, level, made, length, -7, ranges[at]);
                expect_integers(&plain, expected, length, -7, ranges[at]);
                compare(&stream, &plain, made, expected, length * 8);
            }
            free(made);
            free(expected);
        }
    }
    return 0;
}
