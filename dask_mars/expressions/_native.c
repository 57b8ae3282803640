/* Programs of `_blocks.h` as a Python type. */

#define PY_SSIZE_T_CLEAN
#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#define NPY_TARGET_VERSION NPY_2_0_API_VERSION

#include <Python.h>
#include <numpy/arrayobject.h>

#include <fenv.h>
#include <math.h>

#include "_blocks.h"
#include "_histogram.h"
#include "_moments.h"
#include "_sums.h"
#include "_source.h"

/* Numbers that a source generates at a time: few enough to stay in the second-level cache. */
#define HISTOGRAM_WINDOW (1 << 15)
#define MOMENTS_WINDOW (1 << 15)

typedef struct {
    PyObject_HEAD
    /* The capsules, which keep the loops' data. */
    PyObject *owners;
    struct program program;
} Program;

/* Run Python's signal handlers if a signal is pending; return -1 if one has raised. */
static int look_for_signals(void)
{
    PyGILState_STATE state = PyGILState_Ensure();
    int failed = PyErr_CheckSignals();
    PyGILState_Release(state);
    return failed;
}

static PyObject *program_run(PyObject *object, PyObject *const *arguments, Py_ssize_t argument_count)
{
    const struct program *program = &((Program *)object)->program;
    if (argument_count != program->array_count + 1) {
        PyErr_Format(PyExc_TypeError, "%zd arrays are needed, after the errors to watch", program->array_count);
        return NULL;
    }
    long watched = PyLong_AsLong(arguments[0]);
    if (watched == -1 && PyErr_Occurred())
        return NULL;
    struct array *arrays = PyMem_New(struct array, program->array_count + 1);
    if (!arrays)
        return PyErr_NoMemory();
    enum outcome outcome = DONE;
    for (Py_ssize_t number = 0; number < program->array_count; number++) {
        PyObject *given = arguments[1 + number];
        npy_intp item = program->array_items[number];
        if (PyCapsule_IsValid(given, SOURCE_CAPSULE)) {
            struct source *source = PyCapsule_GetPointer(given, SOURCE_CAPSULE);
            if ((npy_intp)source->item != item || source->left != (size_t)program->size
                || !may_be_made(program, number)) {
                PyErr_Format(PyExc_ValueError, "array %zd is not what its source makes", number);
                PyMem_Free(arrays);
                return NULL;
            }
            arrays[number] = (struct array){.source = source};
            continue;
        }
        PyArrayObject *array = (PyArrayObject *)given;
        if (!PyArray_Check(given) || PyArray_ITEMSIZE(array) != item) {
            PyErr_Format(PyExc_TypeError, "array %zd has no items of %zd bytes", number, (Py_ssize_t)item);
            PyMem_Free(arrays);
            return NULL;
        }
        if (!PyArray_ISALIGNED(array))
            outcome = REFUSED;
        arrays[number] = (struct array){
            PyArray_BYTES(array), PyArray_NDIM(array), PyArray_DIMS(array), PyArray_STRIDES(array), NULL};
    }
    if (outcome == DONE) {
        Py_BEGIN_ALLOW_THREADS
        outcome = run_program(program, arrays, (int)watched & FE_ALL_EXCEPT, look_for_signals);
        Py_END_ALLOW_THREADS
    }
    PyMem_Free(arrays);
    /* Loops without the GIL set an exception and go on. */
    if (PyErr_Occurred())
        return NULL;
    switch (outcome) {
    case ERRORS:
        PyErr_SetString(PyExc_FloatingPointError, "in a block");
        return NULL;
    case FAILED:
        PyErr_SetString(PyExc_RuntimeError, "a loop has failed");
        return NULL;
    case NO_MEMORY:
        return PyErr_NoMemory();
    default:
        return PyBool_FromLong(outcome == DONE);
    }
}

static int read_step(Program *self, PyObject *given, Py_ssize_t number)
{
    const struct program *program = &self->program;
    struct step *step = &program->steps[number];
    PyObject *capsule, *references;
    if (!PyArg_ParseTuple(given, "OO!i", &capsule, &PyTuple_Type, &references, &step->flags))
        return -1;
    const struct loop *loop = step->loop = PyCapsule_GetPointer(capsule, LOOP_CAPSULE);
    if (!loop)
        return -1;
    if (!loop->function || loop->requires_python) {
        PyErr_SetString(PyExc_ValueError, "the loop needs Python");
        return -1;
    }
    PyTuple_SET_ITEM(self->owners, number, Py_NewRef(capsule));
    step->arguments = (int)PyTuple_GET_SIZE(references);
    if (step->arguments > MOST_ARGUMENTS || (step->flags & REDUCTION && step->arguments != 3)) {
        PyErr_SetString(PyExc_ValueError, "the step has too many arguments, or too few");
        return -1;
    }
    for (int place = 0; place < step->arguments; place++) {
        long reference = PyLong_AsLong(PyTuple_GET_ITEM(references, place));
        if (reference == -1 && PyErr_Occurred())
            return -1;
        if (reference >= program->array_count || reference < -program->buffer_count) {
            PyErr_SetString(PyExc_ValueError, "there is no such array or buffer");
            return -1;
        }
        step->references[place] = (int)reference;
    }
    if (step->flags & OF_RESULTS && (!number || !(step->flags & SUM) || program->steps[number - 1].flags & REDUCTION)) {
        PyErr_SetString(PyExc_ValueError, "there are no results to sum");
        return -1;
    }
    if (step->flags & REDUCTION && (step->references[0] < 0 || step->references[2] < 0)) {
        PyErr_SetString(PyExc_ValueError, "a total has to be an array");
        return -1;
    }
    return 0;
}

static npy_intp *read_sizes(PyObject *given, npy_intp least, npy_intp most)
{
    Py_ssize_t count = PyTuple_GET_SIZE(given);
    npy_intp *sizes = PyMem_New(npy_intp, count + 1);
    if (!sizes)
        return (npy_intp *)PyErr_NoMemory();
    for (Py_ssize_t number = 0; number < count; number++) {
        sizes[number] = PyLong_AsSsize_t(PyTuple_GET_ITEM(given, number));
        if (sizes[number] < least || sizes[number] > most) {
            if (!PyErr_Occurred())
                PyErr_SetString(PyExc_ValueError, "the size is out of range");
            PyMem_Free(sizes);
            return NULL;
        }
    }
    return sizes;
}

static PyObject *program_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords)
{
    static char *names[] = {"steps", "array_items", "buffer_items", "shape", "reversed", "block", NULL};
    PyObject *steps, *array_items, *buffer_items, *shape;
    int reversed;
    Py_ssize_t block;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O!O!O!O!pn:Program", names, &PyTuple_Type, &steps,
                                     &PyTuple_Type, &array_items, &PyTuple_Type, &buffer_items, &PyTuple_Type,
                                     &shape, &reversed, &block))
        return NULL;
    if (block < GRID || block % GRID || block > MOST_BLOCK || PyTuple_GET_SIZE(shape) > MOST_DIMENSIONS
        || PyTuple_GET_SIZE(buffer_items) > MOST_BUFFERS) {
        PyErr_SetString(PyExc_ValueError, "the block, the shape or the number of buffers is out of range");
        return NULL;
    }
    Program *self = (Program *)type->tp_alloc(type, 0);
    if (!self)
        return NULL;
    struct program *program = &self->program;
    program->block = block;
    program->reversed = reversed;
    program->array_count = PyTuple_GET_SIZE(array_items);
    program->buffer_count = PyTuple_GET_SIZE(buffer_items);
    program->step_count = PyTuple_GET_SIZE(steps);
    program->dimensions = (int)PyTuple_GET_SIZE(shape);
    npy_intp *lengths = read_sizes(shape, 1, NPY_MAX_INTP);
    program->size = 1;
    for (int axis = 0; lengths && axis < program->dimensions; axis++)
        program->size *= program->shape[axis] = lengths[axis];
    PyMem_Free(lengths);
    if (!lengths || !(program->array_items = read_sizes(array_items, 1, LARGEST_ITEM))
        || !(program->buffer_items = read_sizes(buffer_items, 1, LARGEST_ITEM))
        || !(self->owners = PyTuple_New(program->step_count)))
        goto failed;
    program->steps = PyMem_New(struct step, program->step_count + 1);
    if (!program->steps) {
        PyErr_NoMemory();
        goto failed;
    }
    for (Py_ssize_t number = 0; number < program->step_count; number++)
        if (read_step(self, PyTuple_GET_ITEM(steps, number), number))
            goto failed;
    return (PyObject *)self;

failed:
    Py_DECREF(self);
    return NULL;
}

static void program_dealloc(PyObject *object)
{
    Program *self = (Program *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyMem_Free(self->program.steps);
    PyMem_Free(self->program.array_items);
    PyMem_Free(self->program.buffer_items);
    Py_XDECREF(self->owners);
    type->tp_free(object);
    Py_DECREF(type);
}

static PyMethodDef program_methods[] = {
    {"run", (PyCFunction)(void (*)(void))program_run, METH_FASTCALL,
     "Run over arrays, or sources of their elements. Return False if they are not aligned, or have an unsupported "
     "layout. Raises FloatingPointError if one of the watched errors happens."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot program_slots[] = {
    {Py_tp_doc, "Elementwise steps, and the reductions at their ends, that are run block by block."},
    {Py_tp_new, program_new},
    {Py_tp_dealloc, program_dealloc},
    {Py_tp_methods, program_methods},
    {0, NULL},
};

static PyType_Spec program_spec = {
    .name = "dask_mars.expressions._native.Program",
    .basicsize = sizeof(Program),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = program_slots,
};

/* -- the module -------------------------------------------------------------------------------------------------*/

static PyObject *loop_capsule(const struct loop *loop)
{
    if (!loop)
        Py_RETURN_NONE;
    return PyCapsule_New((void *)loop, LOOP_CAPSULE, NULL);
}

static PyObject *cast_(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    int from, to;
    if (!PyArg_ParseTuple(arguments, "CC:cast", &from, &to))
        return NULL;
    return loop_capsule(cast_loop((char)from, (char)to));
}

static PyObject *select_(PyObject *Py_UNUSED(module), PyObject *size)
{
    Py_ssize_t item_bytes = PyLong_AsSsize_t(size);
    if (item_bytes == -1 && PyErr_Occurred())
        return NULL;
    return loop_capsule(select_loop(item_bytes));
}

static PyObject *arithmetic_(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    const char *name;
    int type;
    if (!PyArg_ParseTuple(arguments, "sC:arithmetic", &name, &type))
        return NULL;
    return loop_capsule(arithmetic_loop(name, (char)type));
}

static PyObject *without_nan_(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    int type;
    if (!PyArg_ParseTuple(arguments, "C:without_nan", &type))
        return NULL;
    return loop_capsule(without_nan_loop((char)type));
}

/* Return whether an object is an aligned, contiguous array of one dimension and the given type. */
static int is_plain(PyObject *object, int type)
{
    PyArrayObject *array = (PyArrayObject *)object;
    return PyArray_Check(object) && PyArray_TYPE(array) == type && PyArray_NDIM(array) == 1
           && PyArray_IS_C_CONTIGUOUS(array) && PyArray_ISALIGNED(array) && PyArray_ISNOTSWAPPED(array);
}

/* Doubles of an array, or the remaining ones of a source. */
struct doubles {
    const double *values;
    struct source *source;
    npy_intp count;
};

static int read_doubles(PyObject *given, struct doubles *doubles)
{
    *doubles = (struct doubles){0};
    if (PyCapsule_IsValid(given, SOURCE_CAPSULE)) {
        doubles->source = PyCapsule_GetPointer(given, SOURCE_CAPSULE);
        doubles->count = (npy_intp)doubles->source->left;
        if (doubles->source->is_double)
            return 1;
    }
    else if (is_plain(given, NPY_DOUBLE)) {
        doubles->values = PyArray_DATA((PyArrayObject *)given);
        doubles->count = PyArray_SIZE((PyArrayObject *)given);
        return 1;
    }
    PyErr_SetString(PyExc_TypeError, "values must be a plain array of doubles, or a source of doubles");
    return 0;
}

static PyObject *histogram_(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    PyObject *given;
    PyArrayObject *edges, *counts;
    struct doubles values;
    int regular;
    if (!PyArg_ParseTuple(arguments, "OO!O!p:histogram", &given, &PyArray_Type, &edges, &PyArray_Type, &counts,
                          &regular)
        || !read_doubles(given, &values))
        return NULL;
    if (!is_plain((PyObject *)edges, NPY_DOUBLE) || !is_plain((PyObject *)counts, NPY_INT64)
        || !PyArray_ISWRITEABLE(counts)) {
        PyErr_SetString(PyExc_TypeError, "edges must be a plain array of doubles, and counts one of int64");
        return NULL;
    }
    npy_intp count = PyArray_SIZE(counts);
    const double *edge = PyArray_DATA(edges);
    int rise = count > 0 && count < INT32_MAX && PyArray_SIZE(edges) == count + 1 && isfinite(edge[0])
               && isfinite(edge[count]) && isfinite(edge[count] - edge[0]) && edge[count] > edge[0];
    for (npy_intp number = 0; rise && number < count; number++)
        rise = edge[number] <= edge[number + 1];
    if (!rise) {
        PyErr_SetString(PyExc_ValueError, "edges have to rise, and to be one more than there are counts");
        return NULL;
    }
    struct bins bins = {count, edge, regular};
    int64_t *found = PyArray_DATA(counts);
    int failed = 0;
    Py_BEGIN_ALLOW_THREADS
    if (!values.source)
        failed = count_in_bins(&bins, values.values, values.count, found);
    else {
        double *memory = malloc(HISTOGRAM_WINDOW * sizeof *memory);
        failed = !memory;
        while (values.source->left && !failed) {
            size_t part = values.source->left < HISTOGRAM_WINDOW ? values.source->left : HISTOGRAM_WINDOW;
            values.source->fill(values.source, memory, part);
            failed = count_in_bins(&bins, memory, (ptrdiff_t)part, found);
        }
        free(memory);
    }
    Py_END_ALLOW_THREADS
    if (failed)
        return PyErr_NoMemory();
    Py_RETURN_NONE;
}

/* Add whole rows of a source, some rows at a time. Return -1 if there is no memory. */
static int add_moments_of_source(struct source *source, npy_intp columns, double *pivots, double *totals,
                                 double *squares)
{
    npy_intp rows = (npy_intp)source->left / columns, most = MOMENTS_WINDOW / columns;
    most = most < 1 ? 1 : most / MOMENTS_ROWS ? most / MOMENTS_ROWS * MOMENTS_ROWS : most;
    double *memory = malloc((size_t)(most * columns) * sizeof *memory);
    if (!memory)
        return -1;
    for (npy_intp row = 0; row < rows; row += most) {
        npy_intp part = rows - row < most ? rows - row : most;
        source->fill(source, memory, (size_t)(part * columns));
        add_moments(memory, part, columns, row, pivots, totals, squares);
    }
    free(memory);
    return 0;
}

static PyObject *moments_(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    PyObject *given;
    PyArrayObject *pivots, *totals, *squares;
    struct doubles values;
    if (!PyArg_ParseTuple(arguments, "OO!O!O!:moments", &given, &PyArray_Type, &pivots, &PyArray_Type, &totals,
                          &PyArray_Type, &squares)
        || !read_doubles(given, &values))
        return NULL;
    if (!is_plain((PyObject *)totals, NPY_DOUBLE) || !is_plain((PyObject *)squares, NPY_DOUBLE)
        || !is_plain((PyObject *)pivots, NPY_DOUBLE) || !PyArray_ISWRITEABLE(totals) || !PyArray_ISWRITEABLE(squares)
        || !PyArray_ISWRITEABLE(pivots)) {
        PyErr_SetString(PyExc_TypeError, "pivots, totals and squares must be plain arrays of doubles");
        return NULL;
    }
    npy_intp columns = PyArray_SIZE(totals);
    if (!columns || PyArray_SIZE(squares) != columns || PyArray_SIZE(pivots) != columns
        || (!values.source && values.count % columns)) {
        PyErr_SetString(PyExc_ValueError, "values must be whole rows, as long as the other arrays");
        return NULL;
    }
    double *pivot = PyArray_DATA(pivots), *total = PyArray_DATA(totals), *square = PyArray_DATA(squares);
    int failed = 0;
    Py_BEGIN_ALLOW_THREADS
    if (values.source)
        failed = add_moments_of_source(values.source, columns, pivot, total, square);
    else
        add_moments(values.values, values.count / columns, columns, 0, pivot, total, square);
    Py_END_ALLOW_THREADS
    if (failed)
        return PyErr_NoMemory();
    Py_RETURN_NONE;
}

static PyObject *group_sums_(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    PyArrayObject *rows, *groups, *first, *totals;
    if (!PyArg_ParseTuple(arguments, "O!O!O!O!:group_sums", &PyArray_Type, &rows, &PyArray_Type, &groups,
                          &PyArray_Type, &first, &PyArray_Type, &totals))
        return NULL;
    npy_intp count = PyArray_SIZE(groups);
    if (PyArray_NDIM(rows) != 2 || PyArray_TYPE(rows) != NPY_DOUBLE || !PyArray_ISBEHAVED_RO(rows)
        || PyArray_STRIDE(rows, 1) != sizeof(double) || PyArray_DIM(rows, 0) != count
        || !is_plain((PyObject *)groups, NPY_INT64) || !is_plain((PyObject *)first, NPY_BOOL)
        || PyArray_SIZE(first) != count || PyArray_NDIM(totals) != 2 || PyArray_TYPE(totals) != NPY_DOUBLE
        || !PyArray_ISCARRAY(totals) || PyArray_DIM(totals, 1) != PyArray_DIM(rows, 1)) {
        PyErr_SetString(PyExc_TypeError, "rows must be doubles, of one group each, and as long as the totals");
        return NULL;
    }
    const int64_t *group = PyArray_DATA(groups);
    for (npy_intp row = 0; row < count; row++)
        if (group[row] < 0 || group[row] >= PyArray_DIM(totals, 0)) {
            PyErr_SetString(PyExc_ValueError, "a group has no total");
            return NULL;
        }
    int is_odd;
    Py_BEGIN_ALLOW_THREADS
    feclearexcept(FE_ALL_EXCEPT);
    is_odd = add_to_groups(PyArray_DATA(rows), count, PyArray_STRIDE(rows, 0), PyArray_DIM(rows, 1), group,
                           PyArray_DATA(first), PyArray_DATA(totals))
             || fetestexcept(FE_OVERFLOW | FE_INVALID);
    feclearexcept(FE_ALL_EXCEPT);
    Py_END_ALLOW_THREADS
    return PyBool_FromLong(!is_odd);
}

/* Maximum number of keys of a group. */
#define MOST_KEYS 8

/* Read the ranges of keys; return the number of places in a table of all combinations, 0 if it would be too large. */
static npy_intp read_keys(PyObject *arrays, npy_intp most, struct key *keys, npy_intp rows)
{
    npy_intp size = 1;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t number = 0; size && number < PyTuple_GET_SIZE(arrays); number++) {
        keys[number].numbers = PyArray_DATA((PyArrayObject *)PyTuple_GET_ITEM(arrays, number));
        int64_t high;
        key_range(keys[number].numbers, rows, &keys[number].low, &high);
        uint64_t differences = (uint64_t)high - (uint64_t)keys[number].low;
        int fits = differences < (uint64_t)(most / size);
        keys[number].size = fits ? (int32_t)differences + 1 : 0;
        size *= keys[number].size;
    }
    Py_END_ALLOW_THREADS
    return size;
}

/* Return the length of plain arrays of int64, or of doubles as well; -1 and an error if they have none in common. */
static npy_intp common_length(PyObject *arrays, npy_intp length, int are_keys)
{
    for (Py_ssize_t number = 0; number < PyTuple_GET_SIZE(arrays); number++) {
        PyObject *array = PyTuple_GET_ITEM(arrays, number);
        if (!is_plain(array, NPY_INT64) && (are_keys || !is_plain(array, NPY_DOUBLE)))
            length = -1;
        else if (length < 0)
            length = PyArray_SIZE((PyArrayObject *)array);
        if (length < 1 || length >= INT32_MAX || length != PyArray_SIZE((PyArrayObject *)array)) {
            PyErr_SetString(PyExc_TypeError, "keys and columns must be plain arrays of one length, of known numbers");
            return -1;
        }
    }
    return length;
}

static PyObject *key_totals_(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    PyObject *arrays, *given, *ranges = NULL, *found = NULL, *result = NULL;
    Py_ssize_t most;
    if (!PyArg_ParseTuple(arguments, "O!O!n:key_totals", &PyTuple_Type, &arrays, &PyTuple_Type, &given, &most))
        return NULL;
    Py_ssize_t key_count = PyTuple_GET_SIZE(arrays), column_count = PyTuple_GET_SIZE(given);
    if (key_count < 1 || key_count > MOST_KEYS || most < 1 || most >= INT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "there must be keys, and places for them");
        return NULL;
    }
    npy_intp rows = common_length(arrays, -1, 1);
    if (rows < 0 || common_length(given, rows, 0) < 0)
        return NULL;
    struct key keys[MOST_KEYS];
    npy_intp size = read_keys(arrays, most, keys, rows);
    if (!size)
        Py_RETURN_NONE;
    struct column *columns = PyMem_Calloc((size_t)column_count + 1, sizeof *columns);
    PyArrayObject *first = (PyArrayObject *)PyArray_ZEROS(1, &size, NPY_INT32, 0);
    if (!columns || !first || !(ranges = PyList_New(0)) || !(found = PyList_New(0)))
        goto end;
    for (Py_ssize_t number = 0; number < key_count; number++) {
        PyObject *range = Py_BuildValue("(Li)", (long long)keys[number].low, (int)keys[number].size);
        int failed = !range || PyList_Append(ranges, range) < 0;
        Py_XDECREF(range);
        if (failed)
            goto end;
    }
    for (Py_ssize_t number = 0; number < column_count; number++) {
        PyArrayObject *column = (PyArrayObject *)PyTuple_GET_ITEM(given, number);
        int is_double = PyArray_TYPE(column) == NPY_DOUBLE;
        PyObject *totals = PyArray_ZEROS(1, &size, PyArray_TYPE(column), 0);
        PyObject *counts = PyArray_ZEROS(1, &size, NPY_INT64, 0);
        PyObject *pair = totals && counts ? PyTuple_Pack(2, totals, counts) : NULL;
        double *errors = is_double ? PyMem_Calloc((size_t)size, sizeof *errors) : NULL;
        void *data = PyArray_DATA(column);
        columns[number] = (struct column){
            is_double ? data : NULL, is_double ? NULL : data, totals ? PyArray_DATA((PyArrayObject *)totals) : NULL,
            errors, counts ? PyArray_DATA((PyArrayObject *)counts) : NULL};
        int failed = !pair || (is_double && !errors) || PyList_Append(found, pair) < 0;
        Py_XDECREF(totals);
        Py_XDECREF(counts);
        Py_XDECREF(pair);
        if (failed)
            goto end;
    }
    Py_ssize_t runs;
    Py_BEGIN_ALLOW_THREADS
    runs = add_groups(keys, (int)key_count, columns, column_count, rows, PyArray_DATA(first));
    feclearexcept(FE_ALL_EXCEPT);
    Py_END_ALLOW_THREADS
    result = Py_BuildValue("(OOOn)", first, ranges, found, runs);
end:
    if (!result && !PyErr_Occurred())
        PyErr_NoMemory();
    for (Py_ssize_t number = 0; columns && number < column_count; number++)
        PyMem_Free(columns[number].errors);
    PyMem_Free(columns);
    Py_XDECREF(first);
    Py_XDECREF(ranges);
    Py_XDECREF(found);
    return result;
}

static PyObject *table_sum_(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    PyArrayObject *table;
    Py_ssize_t together;
    if (!PyArg_ParseTuple(arguments, "O!n:table_sum", &PyArray_Type, &table, &together))
        return NULL;
    int type = PyArray_TYPE(table);
    npy_intp item = PyArray_ITEMSIZE(table);
    if (PyArray_NDIM(table) != 2 || (type != NPY_DOUBLE && type != NPY_FLOAT) || !PyArray_ISBEHAVED_RO(table)
        || PyArray_STRIDE(table, 1) != item || PyArray_STRIDE(table, 0) % item
        || PyArray_DIM(table, 1) < LEAST_TABLE_ROW || together < 1) {
        PyErr_SetString(PyExc_TypeError, "the table must be of floats or doubles in contiguous rows");
        return NULL;
    }
    const void *rows = PyArray_DATA(table);
    npy_intp count = PyArray_DIM(table, 0), length = PyArray_DIM(table, 1), stride = PyArray_STRIDE(table, 0) / item;
    double total;
    int is_odd;
    Py_BEGIN_ALLOW_THREADS
    feclearexcept(FE_ALL_EXCEPT);
    total = type == NPY_DOUBLE ? double_table_sum(rows, count, length, stride, together)
                               : (double)float_table_sum(rows, count, length, stride, together);
    is_odd = fetestexcept(FE_OVERFLOW | FE_INVALID);
    feclearexcept(FE_ALL_EXCEPT);
    Py_END_ALLOW_THREADS
    if (is_odd)
        Py_RETURN_NONE;
    return PyFloat_FromDouble(total);
}

/* Return an array of the remaining numbers of a source. */
static PyObject *rest_(PyObject *Py_UNUSED(module), PyObject *capsule)
{
    struct source *source = PyCapsule_GetPointer(capsule, SOURCE_CAPSULE);
    if (!source)
        return NULL;
    if (!source->is_double) {
        PyErr_SetString(PyExc_TypeError, "the source is not one of doubles");
        return NULL;
    }
    npy_intp count = (npy_intp)source->left;
    PyObject *array = PyArray_SimpleNew(1, &count, NPY_DOUBLE);
    if (array)
        source->fill(source, PyArray_DATA((PyArrayObject *)array), (size_t)count);
    return array;
}

static PyMethodDef functions[] = {
    {"arithmetic", arithmetic_, METH_VARARGS,
     "Return the loop of a ufunc, given its name and NumPy's character for the type of all arguments, or None."},
    {"cast", cast_, METH_VARARGS, "Return the loop that casts one type to another, by NumPy's characters, or None."},
    {"group_sums", group_sums_, METH_VARARGS,
     "Add rows to the totals of their groups, the first of each group to zero. Return False if a total is NaN, or "
     "after a floating-point error."},
    {"histogram", histogram_, METH_VARARGS,
     "Add the numbers of values, or of a source, between edges to counts; "
     "by NumPy's method for bins of equal width if they have one."},
    {"key_totals", key_totals_, METH_VARARGS,
     "Return, for a table of all combinations of keys, the number from one on of each place's first row, lowest number "
     "and size for each key, sums (compensated as by pandas) and counts of numbers that are not NaN for each column, "
     "and the number of runs of rows with one place; None for a larger table."},
    {"moments", moments_, METH_VARARGS,
     "Compute, for rows or the whole rows of a source, pivots, sums of differences to these, and of squared "
     "differences to means."},
    {"rest", rest_, METH_O, "Return an array of the remaining doubles of a source."},
    {"select", select_, METH_O, "Return the loop of where(condition, x, y) for items of a number of bytes, or None."},
    {"table_sum", table_sum_, METH_VARARGS,
     "Return the sum of a table of floats or doubles, added in NumPy's order with the given number of rows in its buffer. "
     "Return None after a floating-point error."},
    {"without_nan", without_nan_, METH_VARARGS,
     "Return the loop that replaces NaN by zero, by NumPy's type character, or None."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_native",
    .m_doc = "Elementwise programs over blocks that stay in the first-level cache.",
    .m_size = -1,
    .m_methods = functions,
};

PyMODINIT_FUNC PyInit__native(void)
{
    import_array();
    PyObject *module = PyModule_Create(&definition);
    if (!module)
        return NULL;
#ifdef Py_GIL_DISABLED
    PyUnstable_Module_SetGIL(module, Py_MOD_GIL_NOT_USED);
#endif
    PyObject *type = PyType_FromSpec(&program_spec);
    static const struct {
        const char *name;
        int value;
    } constants[] = {
        {"POSITIONAL", POSITIONAL}, {"CAST_BEFORE", CAST_BEFORE}, {"REDUCTION", REDUCTION}, {"SUM", SUM},
        {"OF_RESULTS", OF_RESULTS}, {"FORWARD", FORWARD},         {"PAIRWISE", PAIRWISE},   {"PAIR", PAIR},
        {"DIVIDE", FE_DIVBYZERO},   {"OVER", FE_OVERFLOW},        {"UNDER", FE_UNDERFLOW},  {"INVALID", FE_INVALID},
    };
    int failed = !type || PyModule_AddObjectRef(module, "Program", type);
    for (size_t number = 0; !failed && number < sizeof constants / sizeof *constants; number++)
        failed = PyModule_AddIntConstant(module, constants[number].name, constants[number].value);
    Py_XDECREF(type);
    if (failed) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
