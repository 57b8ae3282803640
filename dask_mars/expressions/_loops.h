/* Inner loops that NumPy has, but does not publish: casts, and the choice of `numpy.where`; zeros in place of NaN, for
 * which NumPy makes three passes; and arithmetic, whose results IEEE 754 defines. */

#ifndef DASK_MARS_LOOPS_H
#define DASK_MARS_LOOPS_H

#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#define NPY_TARGET_VERSION NPY_2_0_API_VERSION

#include <Python.h>
#include <numpy/ndarraytypes.h>
#include <numpy/dtype_api.h>

#include "_sums.h"

/* Content of the capsules of NumPy's `ufunc._get_strided_loop`, and of those of the loops here. NumPy documents the
 * layout, and changes the capsule's name with it. */
#define LOOP_CAPSULE "numpy_1.24_ufunc_call_info"

struct loop {
    PyArrayMethod_StridedLoop *function;
    PyArrayMethod_Context *context;
    NpyAuxData *data;
    npy_bool requires_python;
    npy_bool no_floating_point_errors;
};

/* Returned by a loop that meets a value whose result only NumPy can compute. */
#define LOOP_REFUSED 1

/* Return the loop that casts, or NULL. Types are NumPy's type characters. */
const struct loop *cast_loop(char from, char to);

/* Return the loop that copies items of a size, or NULL. */
const struct loop *copy_loop(npy_intp item_bytes);

/* Return the loop of `where(condition, x, y)` for items of a size, or NULL. */
const struct loop *select_loop(npy_intp item_bytes);

/* Return the loop that replaces NaN by zero, for floats and doubles, or NULL. */
const struct loop *without_nan_loop(char type);

/* Return the loop of a ufunc of floats or doubles, by its name, or NULL; of "sincos" one with two results. */
const struct loop *arithmetic_loop(const char *name, char type);

/* Return the function that sums a loop's results without storing them, or NULL. */
pair_sum *sum_of_results(const struct loop *loop);

#endif
