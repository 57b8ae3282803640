/* Programs of elementwise steps, run block by block by NumPy's own inner loops.
 *
 * A program knows its steps, the shape that they work on, and how many arrays and buffers they read and write. All
 * that is on the way from the arrays that are given to those that are filled lies in buffers of one block, which stay
 * in the first-level cache. Blocks are runs of elements in the order of the shape; where an array's elements do not
 * lie at one distance, because it is broadcast or a part of another, a step is called for each run that does.
 */

#define PY_SSIZE_T_CLEAN
#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#define NPY_TARGET_VERSION NPY_2_0_API_VERSION

#include <Python.h>
#include <numpy/arrayobject.h>

#include <fenv.h>
#include <limits.h>
#include <stdint.h>
#include <string.h>

#include "_loops.h"

/* Of one step: its arguments, the result included. */
#define MOST_ARGUMENTS 8
/* Of an array, once axes are joined that can be walked as one. */
#define MOST_AXES 8
#define MOST_DIMENSIONS 32
/* Results of a reduction over a long run that are kept apart, to be added up pairwise. */
#define PARTS 64
#define LARGEST_ITEM 32
/* Calls of loops between two looks whether a signal has arrived. */
#define PATIENCE 4096
/* As in tiling.py: groups of vector instructions begin at multiples of so many elements. */
#define GRID 64
#define CACHE_LINE 64

enum { POSITIONAL = 1, CAST_BEFORE = 2, REDUCTION = 4 };

enum outcome { DONE, REFUSED, ERRORS, FAILED };

struct step {
    const struct loop *loop;
    int arguments, flags;
    /* Numbers of arrays; below zero, -1 - the number of a buffer. */
    int references[MOST_ARGUMENTS];
};

typedef struct {
    PyObject_HEAD
    /* The capsules, which keep the loops' data. */
    PyObject *owners;
    struct step *steps;
    Py_ssize_t step_count, array_count, buffer_count;
    npy_intp *array_items, *buffer_items;
    npy_intp shape[MOST_DIMENSIONS];
    npy_intp size, block;
    int dimensions, reversed;
} Program;

/* How an array lies in memory: lengths and strides of its axes, the outermost first. */
struct layout {
    int axes;
    npy_intp lengths[MOST_AXES], strides[MOST_AXES];
};

/* An argument of a step, and how far it has been walked. */
struct cursor {
    char *pointer;
    npy_intp stride;
    /* Whether the pointer goes on from block to block: buffers are used again. */
    int moves;
    /* For arrays of several runs: elements left in this one, and where it lies. */
    npy_intp left;
    const struct layout *layout;
    npy_intp index[MOST_AXES];
};

struct bound_step {
    const struct step *step;
    struct cursor cursors[MOST_ARGUMENTS];
    /* Whether every argument is one run. */
    int simple;
    /* Of a reduction: results of this run so far. */
    int parts;
    char *part_memory;
};

struct run {
    const Program *program;
    struct layout *layouts;
    struct bound_step *steps;
    char *memory;
    int watched;
};

/* -- binding arrays ---------------------------------------------------------------------------------------------*/

/* Find the axes of an array as it is broadcast to the program's shape; 0 if there are too many. */
static int find_layout(const Program *program, PyArrayObject *array, struct layout *layout)
{
    int dimensions = program->dimensions, own = PyArray_NDIM(array);
    npy_intp lengths[MOST_DIMENSIONS], strides[MOST_DIMENSIONS];
    int axes = 0;
    if (own > dimensions)
        return 0;
    /* From the innermost axis outwards, each joined to the one before if a walk goes on over its end. */
    for (int axis = dimensions - 1; axis >= 0; axis--) {
        npy_intp length = program->shape[axis];
        int own_axis = (program->reversed ? dimensions - 1 - axis : axis) - (dimensions - own);
        npy_intp own_length = own_axis < 0 ? 1 : PyArray_DIM(array, own_axis);
        if (own_length != length && own_length != 1)
            return 0;
        if (length == 1)
            continue;
        npy_intp stride = own_length == 1 ? 0 : PyArray_STRIDE(array, own_axis);
        if (axes && stride == strides[axes - 1] * lengths[axes - 1]) {
            lengths[axes - 1] *= length;
            continue;
        }
        lengths[axes] = length;
        strides[axes++] = stride;
    }
    if (!axes) {
        lengths[axes] = 1;
        strides[axes++] = 0;
    }
    if (axes > MOST_AXES)
        return 0;
    layout->axes = axes;
    for (int axis = 0; axis < axes; axis++) {
        layout->lengths[axis] = lengths[axes - 1 - axis];
        layout->strides[axis] = strides[axes - 1 - axis];
    }
    return 1;
}

/* Take the arrays for the arguments of the steps; 0 if they cannot be walked so. */
static int bind(struct run *run, PyObject *const *arrays)
{
    const Program *program = run->program;
    int flat = 1;
    for (Py_ssize_t number = 0; number < program->array_count; number++) {
        PyArrayObject *array = (PyArrayObject *)arrays[number];
        if (!PyArray_ISALIGNED(array) || !find_layout(program, array, &run->layouts[number]))
            return 0;
        flat &= run->layouts[number].axes == 1;
    }
    char *buffers[UCHAR_MAX];
    char *memory = (char *)(((uintptr_t)run->memory + CACHE_LINE - 1) & ~(uintptr_t)(CACHE_LINE - 1));
    for (Py_ssize_t number = 0; number < program->buffer_count; number++) {
        buffers[number] = memory;
        /* Blocks are powers of two: without the line between them all buffers would use the same lines of the cache. */
        memory += program->block * program->buffer_items[number] + CACHE_LINE;
    }
    for (Py_ssize_t number = 0; number < program->step_count; number++) {
        const struct step *step = &program->steps[number];
        struct bound_step *bound = &run->steps[number];
        *bound = (struct bound_step){.step = step, .simple = 1};
        for (int place = 0; place < step->arguments; place++) {
            struct cursor *cursor = &bound->cursors[place];
            int reference = step->references[place];
            if (reference < 0) {
                cursor->pointer = buffers[-1 - reference];
                cursor->stride = program->buffer_items[-1 - reference];
                cursor->left = NPY_MAX_INTP;
                continue;
            }
            const struct layout *layout = &run->layouts[reference];
            cursor->pointer = PyArray_BYTES((PyArrayObject *)arrays[reference]);
            cursor->stride = layout->strides[layout->axes - 1];
            cursor->left = layout->lengths[layout->axes - 1];
            cursor->layout = layout;
            cursor->moves = 1;
            bound->simple &= layout->axes == 1;
            /* Where an array is in several runs, or walked backwards, NumPy's groups may begin anywhere. */
            if (step->flags & POSITIONAL && (layout->axes > 1 || cursor->stride < 0))
                return 0;
        }
        if (step->flags & CAST_BEFORE && !flat)
            return 0;
        if (step->flags & REDUCTION) {
            /* A reduction over a run that is longer than a block. */
            const struct cursor *total = &bound->cursors[0];
            bound->simple = 0;
            if (!total->stride && total->left > program->block) {
                bound->part_memory = memory;
                memory += PARTS * LARGEST_ITEM;
            }
        }
    }
    return 1;
}

/* -- running ----------------------------------------------------------------------------------------------------*/

static int call(const struct loop *loop, char *const *data, npy_intp count, const npy_intp *strides)
{
    return loop->function(loop->context, data, &count, strides, loop->data);
}

/* Go on in an array of several runs, at most to the end of this one. */
static void move(struct cursor *cursor, npy_intp count)
{
    cursor->pointer += count * cursor->stride;
    cursor->left -= count;
    if (cursor->left || !cursor->layout)
        return;
    const struct layout *layout = cursor->layout;
    int axis = layout->axes - 1;
    cursor->left = layout->lengths[axis];
    cursor->pointer -= layout->lengths[axis] * cursor->stride;
    while (axis-- > 0) {
        cursor->pointer += layout->strides[axis];
        if (++cursor->index[axis] < layout->lengths[axis])
            return;
        cursor->pointer -= layout->strides[axis] * layout->lengths[axis];
        cursor->index[axis] = 0;
    }
}

static int run_simple(struct bound_step *bound, npy_intp count)
{
    const struct step *step = bound->step;
    char *data[MOST_ARGUMENTS];
    npy_intp strides[MOST_ARGUMENTS];
    for (int place = 0; place < step->arguments; place++) {
        struct cursor *cursor = &bound->cursors[place];
        data[place] = cursor->pointer;
        strides[place] = cursor->stride;
        if (cursor->moves)
            cursor->pointer += count * cursor->stride;
    }
    return call(step->loop, data, count, strides);
}

static int run_in_parts(struct bound_step *bound, npy_intp count)
{
    const struct step *step = bound->step;
    struct cursor cursors[MOST_ARGUMENTS];
    memcpy(cursors, bound->cursors, (size_t)step->arguments * sizeof *cursors);
    npy_intp strides[MOST_ARGUMENTS];
    for (int place = 0; place < step->arguments; place++)
        strides[place] = cursors[place].stride;
    while (count > 0) {
        npy_intp part = count;
        char *data[MOST_ARGUMENTS];
        for (int place = 0; place < step->arguments; place++) {
            data[place] = cursors[place].pointer;
            if (cursors[place].left < part)
                part = cursors[place].left;
        }
        int failed = call(step->loop, data, part, strides);
        if (failed)
            return failed;
        for (int place = 0; place < step->arguments; place++)
            move(&cursors[place], part);
        count -= part;
    }
    for (int place = 0; place < step->arguments; place++)
        if (cursors[place].moves)
            bound->cursors[place] = cursors[place];
    return 0;
}

/* Put the parts of a reduction together. */
static int reduce_parts(struct bound_step *bound, npy_intp item)
{
    char *total = bound->cursors[0].pointer;
    char *data[] = {total, bound->part_memory, total};
    npy_intp strides[] = {0, item, 0}, count = bound->parts;
    bound->parts = 0;
    return count ? call(bound->step->loop, data, count, strides) : 0;
}

/* The arguments are the total, what is reduced, and the value that a total begins with. */
static int run_reduction(struct bound_step *bound, npy_intp count, npy_intp item)
{
    const struct step *step = bound->step;
    struct cursor *total = &bound->cursors[0];
    struct cursor source = bound->cursors[1];
    while (count > 0) {
        npy_intp part = count;
        if (total->left < part)
            part = total->left;
        if (source.left < part)
            part = source.left;
        char *into = total->pointer;
        if (bound->part_memory) {
            into = bound->part_memory + bound->parts++ * item;
            memcpy(into, bound->cursors[2].pointer, (size_t)item);
        }
        char *data[] = {into, source.pointer, into};
        npy_intp strides[] = {total->stride, source.stride, total->stride};
        int failed = call(step->loop, data, part, strides);
        if (!failed && bound->part_memory && (bound->parts == PARTS || part == total->left))
            failed = reduce_parts(bound, item);
        if (failed)
            return failed;
        move(total, part);
        move(&source, part);
        count -= part;
    }
    if (source.moves)
        bound->cursors[1] = source;
    return 0;
}

/* Have Python's signal handlers run, if any has to; -1 if one has raised. */
static int look_for_signals(void)
{
    PyGILState_STATE state = PyGILState_Ensure();
    int failed = PyErr_CheckSignals();
    PyGILState_Release(state);
    return failed;
}

/* Run all blocks; the GIL is not held. */
static enum outcome run_blocks(struct run *run)
{
    const Program *program = run->program;
    int watched = run->watched, clean = 0;
    long patience = PATIENCE;
    for (npy_intp start = 0; start < program->size; start += program->block) {
        npy_intp count = program->size - start < program->block ? program->size - start : program->block;
        for (Py_ssize_t number = 0; number < program->step_count; number++) {
            struct bound_step *bound = &run->steps[number];
            const struct step *step = bound->step;
            int checked = watched && !step->loop->no_floating_point_errors;
            /* Loops that NumPy does not look at may leave anything there. */
            if (checked && !clean && fetestexcept(watched))
                feclearexcept(watched);
            int failed = bound->simple               ? run_simple(bound, count)
                         : step->flags & REDUCTION ? run_reduction(bound, count, program->array_items[step->references[0]])
                                                   : run_in_parts(bound, count);
            if (failed)
                return failed == LOOP_REFUSED ? REFUSED : FAILED;
            if (checked && fetestexcept(watched))
                return ERRORS;
            clean = checked;
        }
        if ((patience -= program->step_count) < 0) {
            patience = PATIENCE;
            clean = 0;
            if (look_for_signals())
                return FAILED;
        }
    }
    if (watched && fetestexcept(watched))
        feclearexcept(watched);
    for (Py_ssize_t number = 0; number < program->step_count; number++) {
        struct bound_step *bound = &run->steps[number];
        if (bound->part_memory && reduce_parts(bound, program->array_items[bound->step->references[0]]))
            return FAILED;
    }
    return watched && fetestexcept(watched) ? ERRORS : DONE;
}

/* -- the type ---------------------------------------------------------------------------------------------------*/

static PyObject *program_run(PyObject *object, PyObject *const *arguments, Py_ssize_t argument_count)
{
    Program *self = (Program *)object;
    if (argument_count != self->array_count + 1) {
        PyErr_Format(PyExc_TypeError, "%zd arrays are needed, and the errors to watch", self->array_count);
        return NULL;
    }
    long watched = PyLong_AsLong(arguments[0]);
    if (watched == -1 && PyErr_Occurred())
        return NULL;
    PyObject *const *arrays = arguments + 1;
    for (Py_ssize_t number = 0; number < self->array_count; number++) {
        PyArrayObject *array = (PyArrayObject *)arrays[number];
        if (!PyArray_Check(array) || PyArray_ITEMSIZE(array) != self->array_items[number]) {
            PyErr_Format(PyExc_TypeError, "%zd is no array of items of %zd bytes", number,
                         (Py_ssize_t)self->array_items[number]);
            return NULL;
        }
    }
    size_t steps_bytes = (size_t)self->step_count * sizeof(struct bound_step);
    size_t layouts_bytes = (size_t)self->array_count * sizeof(struct layout);
    size_t memory_bytes = CACHE_LINE + (size_t)self->step_count * PARTS * LARGEST_ITEM;
    for (Py_ssize_t number = 0; number < self->buffer_count; number++)
        memory_bytes += (size_t)(self->block * self->buffer_items[number]) + CACHE_LINE;
    char *memory = PyMem_RawMalloc(steps_bytes + layouts_bytes + memory_bytes);
    if (!memory)
        return PyErr_NoMemory();
    struct run run = {
        .program = self,
        .steps = (struct bound_step *)memory,
        .layouts = (struct layout *)(memory + steps_bytes),
        .memory = memory + steps_bytes + layouts_bytes,
        .watched = (int)watched & FE_ALL_EXCEPT,
    };
    enum outcome outcome = REFUSED;
    if (bind(&run, arrays)) {
        Py_BEGIN_ALLOW_THREADS
        outcome = run_blocks(&run);
        Py_END_ALLOW_THREADS
    }
    PyMem_RawFree(memory);
    /* Loops without the GIL set an exception and go on. */
    if (PyErr_Occurred())
        return NULL;
    if (outcome == FAILED)
        PyErr_SetString(PyExc_RuntimeError, "a loop of NumPy's has failed");
    else if (outcome == ERRORS)
        PyErr_SetString(PyExc_FloatingPointError, "in a block");
    else
        return PyBool_FromLong(outcome == DONE);
    return NULL;
}

static int read_step(Program *self, PyObject *given, struct step *step, PyObject *owners, Py_ssize_t number)
{
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
    PyTuple_SET_ITEM(owners, number, Py_NewRef(capsule));
    step->arguments = (int)PyTuple_GET_SIZE(references);
    if (step->arguments > MOST_ARGUMENTS || (step->flags & REDUCTION && step->arguments != 3)) {
        PyErr_SetString(PyExc_ValueError, "the step has too many arguments, or too few");
        return -1;
    }
    for (int place = 0; place < step->arguments; place++) {
        long reference = PyLong_AsLong(PyTuple_GET_ITEM(references, place));
        if (reference == -1 && PyErr_Occurred())
            return -1;
        if (reference >= self->array_count || reference < -self->buffer_count) {
            PyErr_SetString(PyExc_ValueError, "there is no such array or buffer");
            return -1;
        }
        step->references[place] = (int)reference;
    }
    if (step->flags & REDUCTION && (step->references[0] < 0 || step->references[2] < 0)) {
        PyErr_SetString(PyExc_ValueError, "a total has to be an array");
        return -1;
    }
    return 0;
}

static npy_intp *read_sizes(PyObject *given, npy_intp most)
{
    Py_ssize_t count = PyTuple_GET_SIZE(given);
    npy_intp *sizes = PyMem_New(npy_intp, count + 1);
    if (!sizes)
        return (npy_intp *)PyErr_NoMemory();
    for (Py_ssize_t number = 0; number < count; number++) {
        sizes[number] = PyLong_AsSsize_t(PyTuple_GET_ITEM(given, number));
        if (sizes[number] < 1 || sizes[number] > most) {
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
                                     &PyTuple_Type, &array_items, &PyTuple_Type, &buffer_items, &PyTuple_Type, &shape,
                                     &reversed, &block))
        return NULL;
    if (block < GRID || block % GRID || block > 1 << 20 || PyTuple_GET_SIZE(shape) > MOST_DIMENSIONS
        || PyTuple_GET_SIZE(buffer_items) > UCHAR_MAX) {
        PyErr_SetString(PyExc_ValueError, "the block, the shape or the number of buffers is out of range");
        return NULL;
    }
    Program *self = (Program *)type->tp_alloc(type, 0);
    if (!self)
        return NULL;
    self->block = block;
    self->reversed = reversed;
    self->array_count = PyTuple_GET_SIZE(array_items);
    self->buffer_count = PyTuple_GET_SIZE(buffer_items);
    self->step_count = PyTuple_GET_SIZE(steps);
    self->dimensions = (int)PyTuple_GET_SIZE(shape);
    npy_intp *lengths = read_sizes(shape, NPY_MAX_INTP);
    self->size = 1;
    for (int axis = 0; lengths && axis < self->dimensions; axis++)
        self->size *= self->shape[axis] = lengths[axis];
    PyMem_Free(lengths);
    if (!lengths || !(self->array_items = read_sizes(array_items, LARGEST_ITEM))
        || !(self->buffer_items = read_sizes(buffer_items, LARGEST_ITEM))
        || !(self->owners = PyTuple_New(self->step_count)))
        goto failed;
    self->steps = PyMem_New(struct step, self->step_count + 1);
    if (!self->steps) {
        PyErr_NoMemory();
        goto failed;
    }
    for (Py_ssize_t number = 0; number < self->step_count; number++)
        if (read_step(self, PyTuple_GET_ITEM(steps, number), &self->steps[number], self->owners, number))
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
    PyMem_Free(self->steps);
    PyMem_Free(self->array_items);
    PyMem_Free(self->buffer_items);
    Py_XDECREF(self->owners);
    type->tp_free(object);
    Py_DECREF(type);
}

static PyMethodDef program_methods[] = {
    {"run", (PyCFunction)(void (*)(void))program_run, METH_FASTCALL,
     "Run over arrays. False: they are not aligned, or do not lie as they have to. Raises FloatingPointError if one "
     "of the errors to watch is met."},
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

static PyMethodDef functions[] = {
    {"cast", cast_, METH_VARARGS, "Return the loop that casts from one type to another, by NumPy's characters, or None."},
    {"select", select_, METH_O, "Return the loop of where(condition, x, y) for items of so many bytes, or None."},
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
    PyObject *type = PyType_FromSpec(&program_spec);
    static const struct {
        const char *name;
        int value;
    } constants[] = {
        {"POSITIONAL", POSITIONAL}, {"CAST_BEFORE", CAST_BEFORE}, {"REDUCTION", REDUCTION}, {"DIVIDE", FE_DIVBYZERO},
        {"OVER", FE_OVERFLOW},      {"UNDER", FE_UNDERFLOW},      {"INVALID", FE_INVALID},
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
