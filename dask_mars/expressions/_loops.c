/* Casts and choices: see `_loops.h`. Within the range of the result, casts are the same on all processors. */

/* For sincos. */
#define _GNU_SOURCE

#include "_loops.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "_vectorised.h"

#define PARAMETERS                                                                                                   \
    PyArrayMethod_Context *Py_UNUSED(context), char *const *data, npy_intp const *dimensions,                        \
        npy_intp const *strides, NpyAuxData *Py_UNUSED(auxiliary)

/* A loop may write into one of its arguments, element by element. */
#if defined(__clang__)
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define INDEPENDENT _Pragma("GCC ivdep")
#else
#define INDEPENDENT
#endif

/* Two copies of the loop, so that the compiler makes vector instructions of the one for consecutive elements. */
#define UNARY(name, from, to, expression)                                                                            \
    VECTORISED static int name(PARAMETERS)                                                                                      \
    {                                                                                                                \
        npy_intp count = dimensions[0];                                                                              \
        if (strides[0] == (npy_intp)sizeof(from) && strides[1] == (npy_intp)sizeof(to)) {                            \
            const from *source = (const from *)data[0];                                                              \
            to *target = (to *)data[1];                                                                              \
            INDEPENDENT for (npy_intp at = 0; at < count; at++) {                                                                \
                from value = source[at];                                                                             \
                target[at] = expression;                                                                             \
            }                                                                                                        \
            return 0;                                                                                                \
        }                                                                                                            \
        const char *source = data[0];                                                                                \
        char *target = data[1];                                                                                      \
        for (npy_intp at = 0; at < count; at++, source += strides[0], target += strides[1]) {                        \
            from value = *(const from *)source;                                                                      \
            *(to *)target = expression;                                                                              \
        }                                                                                                            \
        return 0;                                                                                                    \
    }

typedef int32_t float_mask;
typedef int64_t double_mask;

/* C does not define casts of real numbers out of range, and processors differ. */
#define CHECKED(name, from, to, in_range)                                                                            \
    UNARY(name##_in_range, from, to, (to)value)                                                                      \
    VECTORISED static int name(PyArrayMethod_Context *context, char *const *data, npy_intp const *dimensions,        \
                               npy_intp const *strides, NpyAuxData *auxiliary)                                       \
    {                                                                                                                \
        npy_intp count = dimensions[0];                                                                              \
        /* As wide as the compared numbers, so that the compiler uses vectors. */                                    \
        from##_mask outside = 0;                                                                                     \
        if (strides[0] == (npy_intp)sizeof(from)) {                                                                  \
            const from *source = (const from *)data[0];                                                              \
            for (npy_intp at = 0; at < count; at++) {                                                                \
                from value = source[at];                                                                             \
                outside |= (in_range) ? 0 : -1;                                                                      \
            }                                                                                                        \
        }                                                                                                            \
        else {                                                                                                       \
            const char *source = data[0];                                                                            \
            for (npy_intp at = 0; at < count; at++, source += strides[0]) {                                          \
                from value = *(const from *)source;                                                                  \
                outside |= (in_range) ? 0 : -1;                                                                      \
            }                                                                                                        \
        }                                                                                                            \
        return outside ? LOOP_REFUSED : name##_in_range(context, data, dimensions, strides, auxiliary);              \
    }

/* For each integer type: its name, C's name, and the range of real numbers whose integer part fits. The limits are
 * powers of two, or one less where float and double represent that exactly. */
#define WHOLE_TYPES(USE, from_name, from)                                                                            \
    USE(from_name, from, int8, int8_t, value > (from)-129 && value < (from)128)                                      \
    USE(from_name, from, int16, int16_t, value > (from)-32769 && value < (from)32768)                                \
    USE(from_name, from, int32, int32_t, value >= (from)-2147483648.0 && value < (from)2147483648.0)                 \
    USE(from_name, from, int64, int64_t,                                                                             \
        value >= (from)-9223372036854775808.0 && value < (from)9223372036854775808.0)                                \
    USE(from_name, from, uint8, uint8_t, value > (from)-1 && value < (from)256)                                      \
    USE(from_name, from, uint16, uint16_t, value > (from)-1 && value < (from)65536)                                  \
    USE(from_name, from, uint32, uint32_t, value > (from)-1 && value < (from)4294967296.0)                           \
    USE(from_name, from, uint64, uint64_t, value > (from)-1 && value < (from)18446744073709551616.0)

#define WHOLE_TO_WHOLE(from_name, from, to_name, to, in_range) UNARY(from_name##_##to_name, from, to, (to)value)
#define REAL_TO_WHOLE(from_name, from, to_name, to, in_range) CHECKED(from_name##_##to_name, from, to, in_range)

#define FROM_WHOLE(name, type)                                                                                       \
    WHOLE_TYPES(WHOLE_TO_WHOLE, name, type)                                                                          \
    UNARY(name##_bool, type, uint8_t, value != 0)                                                                    \
    UNARY(name##_float, type, float, (float)value)                                                                   \
    UNARY(name##_double, type, double, (double)value)
#define FROM_REAL(name, type)                                                                                        \
    WHOLE_TYPES(REAL_TO_WHOLE, name, type)                                                                           \
    UNARY(name##_bool, type, uint8_t, value != 0)                                                                    \
    UNARY(name##_float, type, float, (float)value)                                                                   \
    UNARY(name##_double, type, double, (double)value)

FROM_WHOLE(bool, uint8_t)
FROM_WHOLE(int8, int8_t)
FROM_WHOLE(int16, int16_t)
FROM_WHOLE(int32, int32_t)
FROM_WHOLE(int64, int64_t)
FROM_WHOLE(uint8, uint8_t)
FROM_WHOLE(uint16, uint16_t)
FROM_WHOLE(uint32, uint32_t)
FROM_WHOLE(uint64, uint64_t)
FROM_REAL(float, float)
FROM_REAL(double, double)

struct bytes16 {
    uint64_t words[2];
};
struct bytes32 {
    uint64_t words[4];
};
struct complex64 {
    float real, imaginary;
};
struct complex128 {
    double real, imaginary;
};

UNARY(copy1, uint8_t, uint8_t, value)
UNARY(copy2, uint16_t, uint16_t, value)
UNARY(copy4, uint32_t, uint32_t, value)
UNARY(copy8, uint64_t, uint64_t, value)
UNARY(copy16, struct bytes16, struct bytes16, value)
UNARY(copy32, struct bytes32, struct bytes32, value)
UNARY(float_complex64, float, struct complex64, ((struct complex64){value, 0}))
UNARY(float_complex128, float, struct complex128, ((struct complex128){(double)value, 0}))
UNARY(double_complex128, double, struct complex128, ((struct complex128){value, 0}))
UNARY(complex64_complex128, struct complex64, struct complex128,
      ((struct complex128){(double)value.real, (double)value.imaginary}))

/* NumPy's own loops for these take up to three times as long in the first-level cache. */
#define BINARY(name, type, expression)                                                                               \
    VECTORISED static int name(PARAMETERS)                                                                           \
    {                                                                                                                \
        npy_intp count = dimensions[0], size = sizeof(type);                                                         \
        const char *first = data[0], *second = data[1];                                                              \
        char *target = data[2];                                                                                      \
        int whole = strides[2] == size && (strides[0] == size || strides[1] == size);                                \
        if (whole && strides[0] == strides[1])                                                                       \
            INDEPENDENT for (npy_intp at = 0; at < count; at++)                                                      \
            {                                                                                                        \
                type x = ((const type *)first)[at], y = ((const type *)second)[at];                                  \
                ((type *)target)[at] = expression;                                                                   \
            }                                                                                                        \
        else if (whole && !strides[1]) {                                                                             \
            type y = *(const type *)second;                                                                          \
            INDEPENDENT for (npy_intp at = 0; at < count; at++)                                                      \
            {                                                                                                        \
                type x = ((const type *)first)[at];                                                                  \
                ((type *)target)[at] = expression;                                                                   \
            }                                                                                                        \
        }                                                                                                            \
        else if (whole && !strides[0]) {                                                                             \
            type x = *(const type *)first;                                                                           \
            INDEPENDENT for (npy_intp at = 0; at < count; at++)                                                      \
            {                                                                                                        \
                type y = ((const type *)second)[at];                                                                 \
                ((type *)target)[at] = expression;                                                                   \
            }                                                                                                        \
        }                                                                                                            \
        else                                                                                                         \
            for (npy_intp at = 0; at < count; at++) {                                                                \
                type x = *(const type *)first, y = *(const type *)second;                                            \
                *(type *)target = expression;                                                                        \
                first += strides[0], second += strides[1], target += strides[2];                                     \
            }                                                                                                        \
        return 0;                                                                                                    \
    }

#define ARITHMETIC(type)                                                                                             \
    BINARY(type##_add, type, x + y)                                                                                  \
    BINARY(type##_subtract, type, x - y)                                                                             \
    BINARY(type##_multiply, type, x *y)                                                                              \
    BINARY(type##_quotient, type, x / y)                                                                             \
    UNARY(type##_square, type, type, value *value)                                                                   \
    UNARY(type##_negative, type, type, -value)

/* Multiplying by the inverse of a power of two gives the same bits and flags in a quarter of the time. The inverses
   of exponents up to the limit are normal numbers. */
#define DIVIDE(type, limit)                                                                                          \
    static int type##_divide(PARAMETERS)                                                                             \
    {                                                                                                                \
        type divisor = dimensions[0] ? *(const type *)data[1] : 0, inverse;                                          \
        int exponent;                                                                                                \
        if (strides[1] || fabs(frexp(divisor, &exponent)) != 0.5 || abs(exponent) > limit)                           \
            return type##_quotient(NULL, data, dimensions, strides, NULL);                                           \
        inverse = 1 / divisor;                                                                                       \
        char *const scaled[] = {data[0], (char *)&inverse, data[2]};                                                 \
        return type##_multiply(NULL, scaled, dimensions, strides, NULL);                                             \
    }

ARITHMETIC(float)
ARITHMETIC(double)
DIVIDE(float, 100)
DIVIDE(double, 1000)
UNARY(float_absolute, float, float, fabsf(value))
UNARY(double_absolute, double, double, fabs(value))
UNARY(float_without_nan, float, float, value == value ? value : 0)
UNARY(double_without_nan, double, double, value == value ? value : 0)

/* -- tables -----------------------------------------------------------------------------------------------------*/

enum { BOOL, INT8, INT16, INT32, INT64, UINT8, UINT16, UINT32, UINT64, FLOAT, DOUBLE, COMPLEX64, COMPLEX128, TYPES };

/* Casts between real numbers may overflow, and NumPy warns of that. */
#define SILENT(loop) {loop, NULL, NULL, 0, 1}
#define WATCHED(loop) {loop, NULL, NULL, 0, 0}
#define ROW(name)                                                                                                    \
    {                                                                                                                \
        [BOOL] = SILENT(name##_bool), [INT8] = SILENT(name##_int8), [INT16] = SILENT(name##_int16),                  \
        [INT32] = SILENT(name##_int32), [INT64] = SILENT(name##_int64), [UINT8] = SILENT(name##_uint8),              \
        [UINT16] = SILENT(name##_uint16), [UINT32] = SILENT(name##_uint32), [UINT64] = SILENT(name##_uint64),        \
        [FLOAT] = WATCHED(name##_float), [DOUBLE] = WATCHED(name##_double)                                           \
    }

static const struct loop casts[TYPES][TYPES] = {
    [BOOL] = ROW(bool),
    [INT8] = ROW(int8),
    [INT16] = ROW(int16),
    [INT32] = ROW(int32),
    [INT64] = ROW(int64),
    [UINT8] = ROW(uint8),
    [UINT16] = ROW(uint16),
    [UINT32] = ROW(uint32),
    [UINT64] = ROW(uint64),
    [FLOAT] = ROW(float),
    [DOUBLE] = ROW(double),
};
static const struct loop to_complex[3] = {WATCHED(float_complex64), WATCHED(float_complex128),
                                          WATCHED(double_complex128)};
static const struct loop complex_to_complex = WATCHED(complex64_complex128);
static const struct loop copies[] = {SILENT(copy1), SILENT(copy2),  SILENT(copy4),
                                     SILENT(copy8), SILENT(copy16), SILENT(copy32)};

static const struct {
    const char *name;
    struct loop of_floats, of_doubles;
    /* Sums the results for doubles. */
    pair_sum *sum;
} arithmetic[] = {
    {"absolute", SILENT(float_absolute), SILENT(double_absolute), sum_of_absolutes},
    {"add", WATCHED(float_add), WATCHED(double_add), sum_of_sums},
    {"divide", WATCHED(float_divide), WATCHED(double_divide), NULL},
    {"multiply", WATCHED(float_multiply), WATCHED(double_multiply), sum_of_products},
    {"negative", SILENT(float_negative), SILENT(double_negative), NULL},
    {"square", WATCHED(float_square), WATCHED(double_square), sum_of_products},
    {"subtract", WATCHED(float_subtract), WATCHED(double_subtract), sum_of_differences},
};
#define ARITHMETIC_COUNT (sizeof arithmetic / sizeof *arithmetic)

static const struct loop without_nan[] = {SILENT(float_without_nan), SILENT(double_without_nan)};

/* Return the index of a size among 1, 2, 4, 8, 16 and 32, or -1. */
static int size_class(npy_intp item_bytes)
{
    for (int place = 0; place < 6; place++)
        if (item_bytes == (npy_intp)1 << place)
            return place;
    return -1;
}

static int whole_type(int is_signed, size_t item_bytes)
{
    return (is_signed ? INT8 : UINT8) + size_class((npy_intp)item_bytes);
}

static int type_of(char character)
{
    switch (character) {
    case '?':
        return BOOL;
    case 'b':
    case 'B':
        return whole_type(character == 'b', sizeof(char));
    case 'h':
    case 'H':
        return whole_type(character == 'h', sizeof(short));
    case 'i':
    case 'I':
        return whole_type(character == 'i', sizeof(int));
    case 'l':
    case 'L':
        return whole_type(character == 'l', sizeof(long));
    case 'q':
    case 'Q':
        return whole_type(character == 'q', sizeof(long long));
    case 'f':
        return FLOAT;
    case 'd':
        return DOUBLE;
    case 'F':
        return COMPLEX64;
    case 'D':
        return COMPLEX128;
    }
    return -1;
}

static npy_intp item_bytes_of(char character)
{
    switch (character) {
    case 'e':
        return 2;
    case 'g':
        return sizeof(npy_longdouble);
    case 'G':
        return 2 * sizeof(npy_longdouble);
    }
    switch (type_of(character)) {
    case BOOL:
    case INT8:
    case UINT8:
        return 1;
    case INT16:
    case UINT16:
        return 2;
    case INT32:
    case UINT32:
    case FLOAT:
        return 4;
    case INT64:
    case UINT64:
    case DOUBLE:
    case COMPLEX64:
        return 8;
    case COMPLEX128:
        return 16;
    }
    return 0;
}

const struct loop *copy_loop(npy_intp item_bytes)
{
    int place = size_class(item_bytes);
    return place < 0 ? NULL : &copies[place];
}

const struct loop *cast_loop(char from, char to)
{
    int source = type_of(from), target = type_of(to);
    if (from == to || (source >= 0 && source == target))
        return copy_loop(item_bytes_of(from));
    if (source < 0 || target < 0)
        return NULL;
    if (target == COMPLEX128 && source == COMPLEX64)
        return &complex_to_complex;
    if (target >= COMPLEX64 && source >= FLOAT && source - FLOAT <= target - COMPLEX64)
        return &to_complex[source - FLOAT + target - COMPLEX64];
    return casts[source][target].function ? &casts[source][target] : NULL;
}

const struct loop *without_nan_loop(char type)
{
    return type == 'f' ? &without_nan[0] : type == 'd' ? &without_nan[1] : NULL;
}

#ifdef __GLIBC__
/* Compute sines and cosines: the numbers are reduced once for both. */
static int double_sincos(PARAMETERS)
{
    const char *source = data[0];
    char *sine = data[1], *cosine = data[2];
    for (npy_intp left = dimensions[0]; left > 0; left--) {
        sincos(*(const double *)source, (double *)sine, (double *)cosine);
        source += strides[0];
        sine += strides[1];
        cosine += strides[2];
    }
    return 0;
}

static const struct loop sines_and_cosines = WATCHED(double_sincos);
#endif

const struct loop *arithmetic_loop(const char *name, char type)
{
#ifdef __GLIBC__
    if (type == 'd' && !strcmp(name, "sincos"))
        return &sines_and_cosines;
#endif
    for (size_t number = 0; number < ARITHMETIC_COUNT; number++)
        if (!strcmp(name, arithmetic[number].name))
            return type == 'd'   ? &arithmetic[number].of_doubles
                   : type == 'f' ? &arithmetic[number].of_floats
                                 : NULL;
    return NULL;
}

pair_sum *sum_of_results(const struct loop *loop)
{
    if (loop == &without_nan[1])
        return sum_without_nan;
    for (size_t number = 0; number < ARITHMETIC_COUNT; number++)
        if (loop == &arithmetic[number].of_doubles)
            return arithmetic[number].sum;
    return NULL;
}

/* -- choices ----------------------------------------------------------------------------------------------------*/

/* Masks rather than branches: the choice may change with each element. */
#define SELECT(name, type, mixed)                                                                                    \
    VECTORISED static int name(PARAMETERS)                                                                                      \
    {                                                                                                                \
        npy_intp count = dimensions[0], size = sizeof(type);                                                         \
        const char *condition = data[0], *first = data[1], *second = data[2];                                        \
        char *target = data[3];                                                                                      \
        if (strides[0] == 1 && strides[3] == size && (strides[1] == size || !strides[1])                             \
            && (strides[2] == size || !strides[2])) {                                                                \
            if (strides[1] && strides[2])                                                                            \
                for (npy_intp at = 0; at < count; at++) {                                                            \
                    type x = ((const type *)first)[at], y = ((const type *)second)[at];                              \
                    int chosen = condition[at] != 0;                                                                 \
                    ((type *)target)[at] = mixed;                                                                    \
                }                                                                                                    \
            else if (strides[1]) {                                                                                   \
                type y = *(const type *)second;                                                                      \
                for (npy_intp at = 0; at < count; at++) {                                                            \
                    type x = ((const type *)first)[at];                                                              \
                    int chosen = condition[at] != 0;                                                                 \
                    ((type *)target)[at] = mixed;                                                                    \
                }                                                                                                    \
            }                                                                                                        \
            else if (strides[2]) {                                                                                   \
                type x = *(const type *)first;                                                                       \
                for (npy_intp at = 0; at < count; at++) {                                                            \
                    type y = ((const type *)second)[at];                                                             \
                    int chosen = condition[at] != 0;                                                                 \
                    ((type *)target)[at] = mixed;                                                                    \
                }                                                                                                    \
            }                                                                                                        \
            else {                                                                                                   \
                type x = *(const type *)first, y = *(const type *)second;                                            \
                for (npy_intp at = 0; at < count; at++) {                                                            \
                    int chosen = condition[at] != 0;                                                                 \
                    ((type *)target)[at] = mixed;                                                                    \
                }                                                                                                    \
            }                                                                                                        \
            return 0;                                                                                                \
        }                                                                                                            \
        for (npy_intp at = 0; at < count; at++) {                                                                    \
            type x = *(const type *)first, y = *(const type *)second;                                                \
            int chosen = *condition != 0;                                                                            \
            *(type *)target = mixed;                                                                                 \
            condition += strides[0], first += strides[1], second += strides[2], target += strides[3];                \
        }                                                                                                            \
        return 0;                                                                                                    \
    }
#define MASKED(type) ((x & (type)-chosen) | (y & (type) ~(type)-chosen))

SELECT(select1, uint8_t, (uint8_t)MASKED(uint8_t))
SELECT(select2, uint16_t, (uint16_t)MASKED(uint16_t))
SELECT(select4, uint32_t, MASKED(uint32_t))
SELECT(select8, uint64_t, MASKED(uint64_t))
SELECT(select16, struct bytes16, chosen ? x : y)
SELECT(select32, struct bytes32, chosen ? x : y)

static const struct loop selects[] = {SILENT(select1), SILENT(select2),  SILENT(select4),
                                      SILENT(select8), SILENT(select16), SILENT(select32)};

const struct loop *select_loop(npy_intp item_bytes)
{
    int place = size_class(item_bytes);
    return place < 0 ? NULL : &selects[place];
}
