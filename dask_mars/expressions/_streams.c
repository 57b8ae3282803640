/* See `_streams.h`.

   A state is a linear function of the previous one, and so of the one 32 steps before: 32 lanes compute 32 states at
   once, in the order of one stream. States are multiplied modulo 2**128, with AVX-512 by halves of 64 bits, or by limbs
   of 52 bits where the processor has instructions for these (IFMA). */

#include "_streams.h"

#include "_vectorised.h"

#include <numpy/random/bitgen.h>

#if defined(__x86_64__) && defined(__GNUC__)
#define HAVE_AVX512 1
#include <immintrin.h>
#endif

/* Numbers that are generated at a time: few enough to stay in the first-level cache. */
#define BLOCK 1024

static const uint128 MULTIPLIER = ((uint128)2549297995355413924ULL << 64) | 4865540595714422341ULL;

static inline uint64_t fold(uint128 state)
{
    uint64_t high = (uint64_t)(state >> 64), value = high ^ (uint64_t)state;
    unsigned by = (unsigned)(high >> 58);
    return value >> by | value << (-by & 63);
}

static inline uint64_t next(struct stream *stream)
{
    stream->state = stream->state * MULTIPLIER + stream->increment;
    return fold(stream->state);
}

/* 53 bits as a number in [0, 1), exactly as NumPy makes it. */
static inline double as_double(uint64_t value)
{
    return (double)(int64_t)(value >> 11) * 0x1p-53;
}

void stream_seed(struct stream *stream, const uint64_t words[4])
{
    stream->increment = ((uint128)words[2] << 64 | words[3]) << 1 | 1;
    stream->state = stream->increment + ((uint128)words[0] << 64 | words[1]);
    stream->state = stream->state * MULTIPLIER + stream->increment;
    stream->half = 0;
    stream->has_half = 0;
}

/* Compute the multiplier and the sum of its lower powers that skip `count` numbers (Brown 1994). */
static void jump(uint128 count, uint128 *multiplier, uint128 *sum)
{
    uint128 power = MULTIPLIER, plus = 1;
    *multiplier = 1;
    *sum = 0;
    for (; count; count >>= 1) {
        if (count & 1) {
            *multiplier *= power;
            *sum = *sum * power + plus;
        }
        plus *= power + 1;
        power *= power;
    }
}

/* -- words of 64 bits, and doubles from them ---------------------------------------------------------------------*/

static inline void put(void *out, size_t at, uint64_t value, int doubles)
{
    if (doubles)
        ((double *)out)[at] = as_double(value);
    else
        ((uint64_t *)out)[at] = value;
}

#define PORTABLE_LANES 4

static inline void raw_portable(struct stream *stream, void *out, size_t count, int doubles)
{
    size_t at = 0;
    if (count >= 2 * PORTABLE_LANES) {
        uint128 multiplier, sum, lanes[PORTABLE_LANES];
        jump(PORTABLE_LANES, &multiplier, &sum);
        uint128 increment = sum * stream->increment;
        for (int lane = 0; lane < PORTABLE_LANES; lane++) {
            next(stream);
            lanes[lane] = stream->state;
        }
        for (;;) {
            for (int lane = 0; lane < PORTABLE_LANES; lane++)
                put(out, at + lane, fold(lanes[lane]), doubles);
            at += PORTABLE_LANES;
            if (count - at < PORTABLE_LANES)
                break;
            for (int lane = 0; lane < PORTABLE_LANES; lane++)
                lanes[lane] = lanes[lane] * multiplier + increment;
        }
        stream->state = lanes[PORTABLE_LANES - 1];
    }
    for (; at < count; at++)
        put(out, at, next(stream), doubles);
}

#ifdef HAVE_AVX512
#define VECTORS 4
#define LANES (8 * VECTORS)
#define LOW_52 0xfffffffffffffULL
#define AVX512 __attribute__((target("avx512f,avx512dq")))
#define AVX512_IFMA __attribute__((target("avx512f,avx512dq,avx512ifma")))

/* Set the lanes to the next states, and return the multiplier and the increment that take each 32 steps further. */
static inline void spread(struct stream *stream, uint128 lanes[LANES], uint128 *multiplier, uint128 *increment)
{
    for (int lane = 0; lane < LANES; lane++) {
        next(stream);
        lanes[lane] = stream->state;
    }
    jump(LANES, multiplier, increment);
    *increment *= stream->increment;
}

AVX512 static inline __m512i every(uint64_t value)
{
    return _mm512_set1_epi64((int64_t)value);
}

/* Fold the halves of eight states, and store them as words or as doubles. */
AVX512 static inline void put_eight(void *out, size_t at, __m512i low, __m512i high, int doubles)
{
    __m512i value = _mm512_rorv_epi64(_mm512_xor_si512(low, high), _mm512_srli_epi64(high, 58));
    if (doubles)
        _mm512_storeu_pd((double *)out + at, _mm512_mul_pd(_mm512_cvtepu64_pd(_mm512_srli_epi64(value, 11)),
                                                           _mm512_set1_pd(0x1p-53)));
    else
        _mm512_storeu_si512((uint64_t *)out + at, value);
}

AVX512 static inline void raw_avx512(struct stream *stream, void *out, size_t count, int doubles)
{
    size_t at = 0;
    if (count >= 2 * LANES) {
        uint128 lanes[LANES], multiplier, increment;
        spread(stream, lanes, &multiplier, &increment);
        uint64_t halves[2][LANES];
        for (int lane = 0; lane < LANES; lane++) {
            halves[0][lane] = (uint64_t)lanes[lane];
            halves[1][lane] = (uint64_t)(lanes[lane] >> 64);
        }
        const __m512i a = every((uint64_t)multiplier), a_high = every((uint64_t)(multiplier >> 64));
        const __m512i c = every((uint64_t)increment), c_high = every((uint64_t)(increment >> 64));
        const __m512i a_upper = _mm512_srli_epi64(a, 32), low_32 = every(UINT32_MAX), one = every(1);
        __m512i low[VECTORS], high[VECTORS];
        for (int v = 0; v < VECTORS; v++) {
            low[v] = _mm512_loadu_si512(halves[0] + 8 * v);
            high[v] = _mm512_loadu_si512(halves[1] + 8 * v);
        }
        for (;;) {
#pragma GCC unroll 4
            for (int v = 0; v < VECTORS; v++)
                put_eight(out, at + 8 * v, low[v], high[v], doubles);
            at += LANES;
            if (count - at < LANES)
                break;
#pragma GCC unroll 4
            for (int v = 0; v < VECTORS; v++) {
                /* The product of the low halves, by their own halves of 32 bits. */
                __m512i upper = _mm512_srli_epi64(low[v], 32), lowest = _mm512_mul_epu32(low[v], a);
                __m512i middle = _mm512_add_epi64(_mm512_mul_epu32(upper, a), _mm512_srli_epi64(lowest, 32));
                __m512i other = _mm512_add_epi64(_mm512_mul_epu32(low[v], a_upper), _mm512_and_si512(middle, low_32));
                __m512i over = _mm512_add_epi64(_mm512_mul_epu32(upper, a_upper), _mm512_srli_epi64(middle, 32));
                over = _mm512_add_epi64(over, _mm512_srli_epi64(other, 32));
                over = _mm512_add_epi64(over, _mm512_mullo_epi64(low[v], a_high));
                over = _mm512_add_epi64(over, _mm512_mullo_epi64(high[v], a));
                __m512i product = _mm512_or_si512(_mm512_slli_epi64(other, 32), _mm512_and_si512(lowest, low_32));
                low[v] = _mm512_add_epi64(product, c);
                over = _mm512_add_epi64(over, c_high);
                high[v] = _mm512_mask_add_epi64(over, _mm512_cmplt_epu64_mask(low[v], c), over, one);
            }
        }
        uint64_t last[2][8];
        _mm512_storeu_si512(last[0], low[VECTORS - 1]);
        _mm512_storeu_si512(last[1], high[VECTORS - 1]);
        stream->state = (uint128)last[1][7] << 64 | last[0][7];
    }
    for (; at < count; at++)
        put(out, at, next(stream), doubles);
}

AVX512_IFMA static inline void raw_avx512_ifma(struct stream *stream, void *out, size_t count, int doubles)
{
    size_t at = 0;
    if (count >= 2 * LANES) {
        uint128 lanes[LANES], multiplier, increment;
        spread(stream, lanes, &multiplier, &increment);
        uint64_t limbs[3][LANES];
        for (int lane = 0; lane < LANES; lane++) {
            limbs[0][lane] = (uint64_t)lanes[lane] & LOW_52;
            limbs[1][lane] = (uint64_t)(lanes[lane] >> 52) & LOW_52;
            limbs[2][lane] = (uint64_t)(lanes[lane] >> 104);
        }
        const __m512i a0 = every((uint64_t)multiplier & LOW_52), c0 = every((uint64_t)increment & LOW_52);
        const __m512i a1 = every((uint64_t)(multiplier >> 52) & LOW_52);
        const __m512i c1 = every((uint64_t)(increment >> 52) & LOW_52);
        const __m512i a2 = every((uint64_t)(multiplier >> 104)), c2 = every((uint64_t)(increment >> 104));
        const __m512i low = every(LOW_52);
        __m512i s0[VECTORS], s1[VECTORS], s2[VECTORS];
        for (int v = 0; v < VECTORS; v++) {
            s0[v] = _mm512_loadu_si512(limbs[0] + 8 * v);
            s1[v] = _mm512_loadu_si512(limbs[1] + 8 * v);
            s2[v] = _mm512_loadu_si512(limbs[2] + 8 * v);
        }
        for (;;) {
#pragma GCC unroll 4
            for (int v = 0; v < VECTORS; v++) {
                __m512i low_half = _mm512_or_si512(_mm512_and_si512(s0[v], low), _mm512_slli_epi64(s1[v], 52));
                __m512i high_half = _mm512_or_si512(_mm512_srli_epi64(_mm512_and_si512(s1[v], low), 12),
                                                    _mm512_slli_epi64(s2[v], 40));
                put_eight(out, at + 8 * v, low_half, high_half, doubles);
            }
            at += LANES;
            if (count - at < LANES)
                break;
#pragma GCC unroll 4
            for (int v = 0; v < VECTORS; v++) {
                /* Products use only the lowest 52 bits of a limb, so carries need not be cleared. */
                __m512i r0 = _mm512_madd52lo_epu64(c0, s0[v], a0);
                __m512i r1 = _mm512_madd52lo_epu64(c1, s0[v], a1);
                __m512i more1 = _mm512_madd52hi_epu64(_mm512_srli_epi64(r0, 52), s0[v], a0);
                __m512i r2 = _mm512_madd52lo_epu64(c2, s0[v], a2);
                __m512i more2 = _mm512_madd52hi_epu64(_mm512_setzero_si512(), s0[v], a1);
                r1 = _mm512_madd52lo_epu64(r1, s1[v], a0);
                r2 = _mm512_madd52lo_epu64(r2, s1[v], a1);
                more2 = _mm512_madd52hi_epu64(more2, s1[v], a0);
                r2 = _mm512_madd52lo_epu64(r2, s2[v], a0);
                r1 = _mm512_add_epi64(r1, more1);
                s0[v] = r0;
                s1[v] = r1;
                s2[v] = _mm512_add_epi64(_mm512_add_epi64(r2, more2), _mm512_srli_epi64(r1, 52));
            }
        }
        uint64_t last[3][8];
        _mm512_storeu_si512(last[0], s0[VECTORS - 1]);
        _mm512_storeu_si512(last[1], s1[VECTORS - 1]);
        _mm512_storeu_si512(last[2], s2[VECTORS - 1]);
        stream->state = (uint128)(last[0][7] & LOW_52) | (uint128)(last[1][7] & LOW_52) << 52
                        | (uint128)last[2][7] << 104;
    }
    for (; at < count; at++)
        put(out, at, next(stream), doubles);
}

AVX512 static void raw_words_avx512(struct stream *stream, uint64_t *out, size_t count)
{
    raw_avx512(stream, out, count, 0);
}

AVX512 static void raw_doubles_avx512(struct stream *stream, double *out, size_t count)
{
    raw_avx512(stream, out, count, 1);
}

AVX512_IFMA static void raw_words_avx512_ifma(struct stream *stream, uint64_t *out, size_t count)
{
    raw_avx512_ifma(stream, out, count, 0);
}

AVX512_IFMA static void raw_doubles_avx512_ifma(struct stream *stream, double *out, size_t count)
{
    raw_avx512_ifma(stream, out, count, 1);
}
#endif

enum stream_level stream_best_level(void)
{
#ifdef HAVE_AVX512
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq"))
        return __builtin_cpu_supports("avx512ifma") ? STREAM_AVX512_IFMA : STREAM_AVX512;
#endif
    return STREAM_PORTABLE;
}

static void raw_words(struct stream *stream, enum stream_level level, uint64_t *out, size_t count)
{
#ifdef HAVE_AVX512
    if (level != STREAM_PORTABLE) {
        (level == STREAM_AVX512 ? raw_words_avx512 : raw_words_avx512_ifma)(stream, out, count);
        return;
    }
#endif
    (void)level;
    raw_portable(stream, out, count, 0);
}

static void raw_doubles(struct stream *stream, enum stream_level level, double *out, size_t count)
{
#ifdef HAVE_AVX512
    if (level != STREAM_PORTABLE) {
        (level == STREAM_AVX512 ? raw_doubles_avx512 : raw_doubles_avx512_ifma)(stream, out, count);
        return;
    }
#endif
    (void)level;
    raw_portable(stream, out, count, 1);
}

/* -- ziggurats ---------------------------------------------------------------------------------------------------*/

/* The lowest bits of a word choose a layer. The other bits times the layer's width are the number if they are below the
   layer's bound, as in 99 of 100 cases. Otherwise NumPy's own function computes the number, beginning with the word. */

#define LAYERS 256

struct layer {
    double width;
    uint64_t bound;
};

static struct layer normal_layers[LAYERS], exponential_layers[LAYERS];
static double (*normal_function)(void *), (*exponential_function)(void *);

/* State of a bit generator for NumPy: the words of a block, and then those that follow in the stream. */
struct words {
    const uint64_t *at, *end;
    struct stream *stream;
};

static uint64_t words_next(void *state)
{
    struct words *words = state;
    return words->at < words->end ? *words->at++ : next(words->stream);
}

static uint32_t words_next_half(void *state)
{
    return (uint32_t)words_next(state);
}

static double words_next_double(void *state)
{
    return as_double(words_next(state));
}

static bitgen_t bit_generator(struct words *words)
{
    return (bitgen_t){words, words_next, words_next_half, words_next_double, words_next};
}

#define NORMAL_LAYER(word) ((word) & 0xff)
#define NORMAL_REST(word) ((word) >> 9 & 0xfffffffffffffULL)
#define NORMAL_WORD(layer, rest) ((rest) << 9 | (layer))
#define EXPONENTIAL_LAYER(word) ((word) >> 3 & 0xff)
#define EXPONENTIAL_REST(word) ((word) >> 11)
#define EXPONENTIAL_WORD(layer, rest) ((rest) << 11 | (layer) << 3)

static void learn(struct layer *layers, double (*function)(void *), int normal)
{
    struct stream others = {1, 1, 0, 0};
    uint64_t given[2] = {0, 0};
    for (uint64_t layer = 0; layer < LAYERS; layer++) {
        struct words words = {given, given + 2, &others};
        bitgen_t generator = bit_generator(&words);
        uint64_t small = 1ULL << 40;
        given[0] = normal ? NORMAL_WORD(layer, small) : EXPONENTIAL_WORD(layer, small);
        layers[layer].width = function(&generator) * 0x1p-40;
        /* Search for the smallest value for which NumPy's function needs more than one word. */
        uint64_t below = 0, above = 1ULL << (normal ? 52 : 53);
        while (below < above) {
            uint64_t middle = (below + above) / 2;
            given[0] = normal ? NORMAL_WORD(layer, middle) : EXPONENTIAL_WORD(layer, middle);
            words.at = given;
            words.end = given + 1;
            uint128 before = others.state;
            function(&generator);
            if (others.state == before)
                below = middle + 1;
            else
                above = middle;
        }
        layers[layer].bound = below;
    }
}

void stream_learn(double (*normal)(void *), double (*exponential)(void *))
{
    learn(normal_layers, normal, 1);
    learn(exponential_layers, exponential, 0);
    normal_function = normal;
    exponential_function = exponential;
}

static size_t normals(struct words *words, double *out)
{
    bitgen_t generator = bit_generator(words);
    const uint64_t *at = words->at, *end = words->end;
    double *begin = out;
    while (at < end) {
        uint64_t word = *at, rest = NORMAL_REST(word);
        struct layer layer = normal_layers[NORMAL_LAYER(word)];
        union {
            double number;
            uint64_t bits;
        } x = {(double)(int64_t)rest * layer.width};
        x.bits |= word << 55 & 1ULL << 63;
        if (__builtin_expect(rest < layer.bound, 1))
            at++;
        else {
            words->at = at;
            x.number = normal_function(&generator);
            at = words->at;
        }
        *out++ = x.number;
    }
    return (size_t)(out - begin);
}

static size_t exponentials(struct words *words, double *out)
{
    bitgen_t generator = bit_generator(words);
    const uint64_t *at = words->at, *end = words->end;
    double *begin = out;
    while (at < end) {
        uint64_t word = *at, rest = EXPONENTIAL_REST(word);
        struct layer layer = exponential_layers[EXPONENTIAL_LAYER(word)];
        double x = (double)(int64_t)rest * layer.width;
        if (__builtin_expect(rest < layer.bound, 1))
            at++;
        else {
            words->at = at;
            x = exponential_function(&generator);
            at = words->at;
        }
        *out++ = x;
    }
    return (size_t)(out - begin);
}

/* -- distributions -----------------------------------------------------------------------------------------------*/

static void fill_floats(struct stream *stream, enum stream_level level, float *out, size_t count)
{
    uint64_t block[BLOCK];
    if (count && stream->has_half) {
        *out++ = (float)(stream->half >> 8) * 0x1p-24f;
        stream->has_half = 0;
        count--;
    }
    while (count) {
        size_t pairs = count / 2 < BLOCK ? count / 2 : BLOCK;
        if (!pairs) {
            uint64_t word = next(stream);
            *out = (float)((uint32_t)word >> 8) * 0x1p-24f;
            stream->half = (uint32_t)(word >> 32);
            stream->has_half = 1;
            return;
        }
        raw_words(stream, level, block, pairs);
        for (size_t at = 0; at < pairs; at++) {
            out[2 * at] = (float)(int32_t)((uint32_t)block[at] >> 8) * 0x1p-24f;
            out[2 * at + 1] = (float)(int32_t)(block[at] >> 40) * 0x1p-24f;
        }
        /* NumPy's state has the same half. */
        stream->half = (uint32_t)(block[pairs - 1] >> 32);
        out += 2 * pairs;
        count -= 2 * pairs;
    }
}

VECTORISED static void scale(double *numbers, size_t count, double first, double second)
{
    for (size_t at = 0; at < count; at++)
        numbers[at] = first + second * numbers[at];
}

void stream_fill(struct stream *stream, enum stream_kind kind, enum stream_level level, void *out, size_t count,
                 double first, double second)
{
    if (kind == STREAM_RANDOM) {
        raw_doubles(stream, level, out, count);
        return;
    }
    if (kind == STREAM_RANDOM_FLOAT) {
        fill_floats(stream, level, out, count);
        return;
    }
    uint64_t block[BLOCK];
    double *numbers = out;
    while (count) {
        size_t taken = count < BLOCK ? count : BLOCK, made = taken;
        if (kind == STREAM_UNIFORM)
            raw_doubles(stream, level, numbers, taken);
        else {
            /* Each number takes at least one word, so all words of the block are used. */
            raw_words(stream, level, block, taken);
            struct words words = {block, block + taken, stream};
            if (kind == STREAM_NORMAL || kind == STREAM_STANDARD_NORMAL)
                made = normals(&words, numbers);
            else
                made = exponentials(&words, numbers);
        }
        if (kind == STREAM_UNIFORM || kind == STREAM_NORMAL)
            scale(numbers, made, first, second);
        else if (kind == STREAM_EXPONENTIAL)
            for (size_t at = 0; at < made; at++)
                numbers[at] = first * numbers[at];
        numbers += made;
        count -= made;
    }
}

/* Turn half a word into a number from 0 to `range` (Lemire 2019); return 0 if the next half is needed instead. */
static inline int bounded(uint32_t half, uint32_t range, uint32_t refused, uint64_t *number)
{
    uint64_t product = (uint64_t)half * ((uint64_t)range + 1);
    *number = product >> 32;
    return (uint32_t)product >= refused;
}

void stream_integers(struct stream *stream, enum stream_level level, int64_t *out, size_t count, int64_t low,
                     uint32_t range)
{
    uint64_t block[BLOCK], number;
    int64_t *end = out + count;
    if (range == 0) {
        while (out < end)
            *out++ = low;
        return;
    }
    uint32_t refused = range == UINT32_MAX ? 0 : (UINT32_MAX - range) % (range + 1);
    if (out < end && stream->has_half) {
        stream->has_half = 0;
        if (bounded(stream->half, range, refused, &number))
            *out++ = (int64_t)((uint64_t)low + number);
    }
    while (out < end) {
        /* Each number takes at least one half, so at most the last half remains. */
        size_t words = (size_t)(end - out + 1) / 2;
        if (words > BLOCK)
            words = BLOCK;
        raw_words(stream, level, block, words);
        stream->half = (uint32_t)(block[words - 1] >> 32);
        for (size_t at = 0; at < words; at++) {
            uint32_t halves[2] = {(uint32_t)block[at], (uint32_t)(block[at] >> 32)};
            for (int which = 0; which < 2; which++) {
                if (out == end) {
                    stream->has_half = 1;
                    return;
                }
                if (bounded(halves[which], range, refused, &number))
                    *out++ = (int64_t)((uint64_t)low + number);
            }
        }
    }
}
