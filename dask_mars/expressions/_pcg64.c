/* The streams of `_streams.h` as a Python type. */

#define PY_SSIZE_T_CLEAN

#include <Python.h>

#include <dlfcn.h>
#include <pthread.h>

#include "_source.h"
#include "_streams.h"

/* Both are read without a lock, while other threads draw numbers. */
static enum stream_level level;
static int learned;

static const char *const level_names[STREAM_LEVELS] = {"portable", "avx512", "avx512-ifma"};

/* Each thread has streams of its own: two that draw from one may get the same numbers. */
typedef struct {
    PyObject_HEAD
    struct stream stream;
} Stream;

/* A distribution and its parameters: `low` and `range` for integers, else `first` and `second`. */
struct distribution {
    enum stream_kind kind;
    double first, second;
    int64_t low;
    uint32_t range;
};

static void draw(struct stream *stream, const struct distribution *drawn, void *out, size_t count)
{
    enum stream_level best = __atomic_load_n(&level, __ATOMIC_RELAXED);
    if (drawn->kind == STREAM_INTEGERS)
        stream_integers(stream, best, out, count, drawn->low, drawn->range);
    else
        stream_fill(stream, drawn->kind, best, out, count, drawn->first, drawn->second);
}

static size_t item_bytes(const struct distribution *drawn)
{
    return drawn->kind == STREAM_RANDOM_FLOAT ? sizeof(float) : sizeof(double);
}

/* A source of numbers from a copy of a stream. */
struct drawn_source {
    struct source source;
    struct stream stream;
    struct distribution distribution;
};

static void fill_from_source(struct source *source, void *out, size_t count)
{
    struct drawn_source *drawn = (struct drawn_source *)source;
    draw(&drawn->stream, &drawn->distribution, out, count);
    source->left -= count;
}

static PyObject *stream_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords)
{
    static char *names[] = {"words", NULL};
    Py_buffer words;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "y*:Stream", names, &words))
        return NULL;
    Stream *self = NULL;
    uint64_t seed[4];
    if (words.len != sizeof(seed))
        PyErr_SetString(PyExc_ValueError, "a seed has four words of 64 bits");
    else
        self = (Stream *)type->tp_alloc(type, 0);
    if (self) {
        memcpy(seed, words.buf, sizeof(seed));
        stream_seed(&self->stream, seed);
    }
    PyBuffer_Release(&words);
    return (PyObject *)self;
}

static void stream_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static int find_kind(const char *name, enum stream_kind *kind)
{
    static const char *const names[STREAM_KINDS] = {
        "random", "random_float", "uniform",     "standard_normal",
        "normal", "standard_exponential", "exponential", "integers",
    };
    for (int number = 0; number < STREAM_KINDS; number++)
        if (!strcmp(names[number], name)) {
            *kind = (enum stream_kind)number;
            return 1;
        }
    PyErr_Format(PyExc_ValueError, "there is no distribution %s", name);
    return 0;
}

/* Read a distribution from its name and two parameters, which may be missing. */
static int read_distribution(const char *name, PyObject *first, PyObject *second, struct distribution *drawn)
{
    *drawn = (struct distribution){0};
    if (!find_kind(name, &drawn->kind))
        return 0;
    if (drawn->kind == STREAM_INTEGERS) {
        uint64_t range = second ? PyLong_AsUnsignedLongLong(second) : 0;
        if (!PyErr_Occurred())
            drawn->low = first ? PyLong_AsLongLong(first) : 0;
        if (!PyErr_Occurred() && range > UINT32_MAX)
            PyErr_SetString(PyExc_ValueError, "the range is of more than 32 bits");
        drawn->range = (uint32_t)range;
    } else {
        drawn->first = first ? PyFloat_AsDouble(first) : 0;
        if (!PyErr_Occurred())
            drawn->second = second ? PyFloat_AsDouble(second) : 0;
    }
    if (!PyErr_Occurred() && drawn->kind >= STREAM_STANDARD_NORMAL && drawn->kind <= STREAM_EXPONENTIAL
        && !__atomic_load_n(&learned, __ATOMIC_ACQUIRE))
        PyErr_SetString(PyExc_RuntimeError, "NumPy's functions are not known");
    return !PyErr_Occurred();
}

static PyObject *stream_method_fill(PyObject *object, PyObject *arguments)
{
    const char *name;
    PyObject *array, *first = NULL, *second = NULL;
    struct distribution drawn;
    if (!PyArg_ParseTuple(arguments, "sO|OO:fill", &name, &array, &first, &second)
        || !read_distribution(name, first, second, &drawn))
        return NULL;
    Py_buffer memory;
    if (PyObject_GetBuffer(array, &memory, PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS))
        return NULL;
    size_t item = item_bytes(&drawn);
    if ((size_t)memory.itemsize != item || (uintptr_t)memory.buf % item) {
        PyBuffer_Release(&memory);
        PyErr_SetString(PyExc_ValueError, "the array is of another type, or not aligned");
        return NULL;
    }
    struct stream stream = ((Stream *)object)->stream;
    Py_BEGIN_ALLOW_THREADS
    draw(&stream, &drawn, memory.buf, (size_t)memory.len / item);
    Py_END_ALLOW_THREADS
    ((Stream *)object)->stream = stream;
    PyBuffer_Release(&memory);
    Py_RETURN_NONE;
}

static void free_source(PyObject *capsule)
{
    PyMem_Free(PyCapsule_GetPointer(capsule, SOURCE_CAPSULE));
}

static PyObject *stream_method_source(PyObject *object, PyObject *arguments)
{
    const char *name;
    Py_ssize_t count;
    PyObject *first = NULL, *second = NULL;
    struct distribution distribution;
    if (!PyArg_ParseTuple(arguments, "sn|OO:source", &name, &count, &first, &second)
        || !read_distribution(name, first, second, &distribution))
        return NULL;
    if (count < 0) {
        PyErr_SetString(PyExc_ValueError, "there cannot be less than no numbers");
        return NULL;
    }
    struct drawn_source *drawn = PyMem_New(struct drawn_source, 1);
    if (!drawn)
        return PyErr_NoMemory();
    size_t item = item_bytes(&distribution);
    int is_double = distribution.kind != STREAM_INTEGERS && item == sizeof(double);
    drawn->source = (struct source){item, is_double, (size_t)count, fill_from_source};
    drawn->stream = ((Stream *)object)->stream;
    drawn->distribution = distribution;
    PyObject *capsule = PyCapsule_New(&drawn->source, SOURCE_CAPSULE, free_source);
    if (!capsule)
        PyMem_Free(drawn);
    return capsule;
}

static PyObject *stream_get_state(PyObject *object, void *Py_UNUSED(closure))
{
    struct stream stream = ((Stream *)object)->stream;
    return Py_BuildValue("KKKKiI", (unsigned long long)(stream.state >> 64), (unsigned long long)stream.state,
                         (unsigned long long)(stream.increment >> 64), (unsigned long long)stream.increment,
                         stream.has_half, (unsigned int)stream.half);
}

static PyMethodDef stream_methods[] = {
    {"fill", stream_method_fill, METH_VARARGS, "Fill an array with the next numbers of a distribution."},
    {"source", stream_method_source, METH_VARARGS,
     "Return a source of a distribution's next numbers for native programs; the stream does not advance."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef stream_attributes[] = {
    {"state", stream_get_state, NULL,
     "Words of state and increment, the high one first; whether half a word is left, and the half.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot stream_slots[] = {
    {Py_tp_new, stream_new},
    {Py_tp_dealloc, stream_dealloc},
    {Py_tp_methods, stream_methods},
    {Py_tp_getset, stream_attributes},
    {Py_tp_doc, "The stream of a PCG64 that is seeded with four words."},
    {0, NULL},
};

static PyType_Spec stream_spec = {
    .name = "dask_mars.expressions._pcg64.Stream",
    .basicsize = sizeof(Stream),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = stream_slots,
};

/* -- the module -------------------------------------------------------------------------------------------------*/

static PyObject *learn(PyObject *Py_UNUSED(module), PyObject *path)
{
    PyObject *name;
    if (!PyUnicode_FSConverter(path, &name))
        return NULL;
    /* The library stays open, because its functions may be called at any time. */
    void *library = dlopen(PyBytes_AS_STRING(name), RTLD_LAZY);
    Py_DECREF(name);
    union {
        void *address;
        double (*function)(void *);
    } normal = {NULL}, exponential = {NULL};
    if (library) {
        normal.address = dlsym(library, "random_standard_normal");
        exponential.address = dlsym(library, "random_standard_exponential");
    }
    if (!normal.address || !exponential.address)
        Py_RETURN_FALSE;
    /* The holder of this lock never waits for the GIL. */
    static pthread_mutex_t learning = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&learning);
    if (!learned) {
        stream_learn(normal.function, exponential.function);
        __atomic_store_n(&learned, 1, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&learning);
    Py_RETURN_TRUE;
}

static PyObject *levels(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    PyObject *names = PyTuple_New((Py_ssize_t)stream_best_level() + 1);
    for (Py_ssize_t number = 0; names && number < PyTuple_GET_SIZE(names); number++) {
        PyObject *name = PyUnicode_FromString(level_names[number]);
        if (!name)
            Py_CLEAR(names);
        else
            PyTuple_SET_ITEM(names, number, name);
    }
    return names;
}

static PyObject *use(PyObject *Py_UNUSED(module), PyObject *name)
{
    const char *wanted = PyUnicode_AsUTF8(name);
    if (!wanted)
        return NULL;
    for (int number = 0; number <= (int)stream_best_level(); number++)
        if (!strcmp(level_names[number], wanted)) {
            __atomic_store_n(&level, (enum stream_level)number, __ATOMIC_RELAXED);
            Py_RETURN_NONE;
        }
    return PyErr_Format(PyExc_ValueError, "this processor has no %s", wanted);
}

static PyMethodDef functions[] = {
    {"learn", learn, METH_O, "Find NumPy's functions in its library; return whether they exist."},
    {"levels", levels, METH_NOARGS, "Return the supported instruction sets, the best one last."},
    {"use", use, METH_O, "Use an instruction set from now on."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_pcg64",
    .m_doc = "NumPy's streams of random numbers, many numbers at a time.",
    .m_size = -1,
    .m_methods = functions,
};

PyMODINIT_FUNC PyInit__pcg64(void)
{
    PyObject *module = PyModule_Create(&definition);
    if (!module)
        return NULL;
#ifdef Py_GIL_DISABLED
    PyUnstable_Module_SetGIL(module, Py_MOD_GIL_NOT_USED);
#endif
    level = stream_best_level();
    PyObject *type = PyType_FromSpec(&stream_spec);
    if (!type || PyModule_AddObjectRef(module, "Stream", type)) {
        Py_XDECREF(type);
        Py_DECREF(module);
        return NULL;
    }
    Py_DECREF(type);
    return module;
}
