/* Inner loops of NumPy's without a public pointer: casts, and the choice of `numpy.where`; and one that it makes
 * three passes for. */

#ifndef DASK_MARS_LOOPS_H
#define DASK_MARS_LOOPS_H

#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#define NPY_TARGET_VERSION NPY_2_0_API_VERSION

#include <Python.h>
#include <numpy/ndarraytypes.h>
#include <numpy/dtype_api.h>

/* What NumPy's `ufunc._get_strided_loop` puts into its capsule, and the loops here as well. The layout is documented
 * there, and tied to the capsule's name. */
#define LOOP_CAPSULE "numpy_1.24_ufunc_call_info"

struct loop {
    PyArrayMethod_StridedLoop *function;
    PyArrayMethod_Context *context;
    NpyAuxData *data;
    npy_bool requires_python;
    npy_bool no_floating_point_errors;
};

/* A loop returns this if it meets a value of which NumPy alone knows what becomes of it. */
#define LOOP_REFUSED 1

/* The loop that casts, or NULL if there is none. Types are given by NumPy's characters. */
const struct loop *cast_loop(char from, char to);

/* The loop that copies items of a size, or NULL. */
const struct loop *copy_loop(npy_intp item_bytes);

/* The loop of `where(condition, x, y)` for items of a size, or NULL. */
const struct loop *select_loop(npy_intp item_bytes);

/* The loop that puts zeros in the place of what is no number, or NULL: for floats and doubles. */
const struct loop *without_nan_loop(char type);

#endif
