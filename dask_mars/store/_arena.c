/* The heap of `_heap.h` and the quota of `_quota.h` as Python types, and as NumPy's allocator (NEP 49). */

#define PY_SSIZE_T_CLEAN
#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#define NPY_TARGET_VERSION NPY_2_0_API_VERSION

#include <Python.h>
#include <numpy/arrayobject.h>

#include "_heap.h"
#include "_objects.h"
#include "_quota.h"

#ifdef __linux__
#include <malloc.h>
#elif defined(__APPLE__)
#include <malloc/malloc.h>
#define malloc_usable_size malloc_size
#endif

/* -- Heap -------------------------------------------------------------------------------------------------------*/

typedef struct {
    PyObject_HEAD
    struct heap *heap;
    /* Keeps the arena mapped. */
    Py_buffer memory;
} Heap;

static int compare_ranges(const void *first, const void *second)
{
    size_t left = ((const struct heap_range *)first)->offset, right = ((const struct heap_range *)second)->offset;
    return (left > right) - (left < right);
}

/* Read (offset, size) pairs, sorted; NULL with an exception set. */
static struct heap_range *read_ranges(PyObject *pairs, Py_ssize_t capacity, size_t *count)
{
    /* Another thread may change a list meanwhile. */
    PyObject *items = PySequence_Tuple(pairs);
    if (!items)
        return NULL;
    Py_ssize_t length = PyTuple_GET_SIZE(items);
    struct heap_range *ranges = PyMem_New(struct heap_range, length + 1);
    if (!ranges)
        PyErr_NoMemory();
    for (Py_ssize_t number = 0; ranges && number < length; number++) {
        PyObject *item = PyTuple_GET_ITEM(items, number);
        Py_ssize_t offset, size;
        int good = PyTuple_Check(item) && PyArg_ParseTuple(item, "nn", &offset, &size);
        if (good && offset >= 0 && size >= 0 && offset <= capacity && size <= capacity - offset
            && offset % HEAP_PAGE_BYTES == 0) {
            ranges[number] = (struct heap_range){(size_t)offset, (size_t)size};
            continue;
        }
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "live has to be pairs of offset and size within the memory");
        PyMem_Free(ranges);
        ranges = NULL;
    }
    Py_DECREF(items);
    if (!ranges)
        return NULL;
    qsort(ranges, (size_t)length, sizeof *ranges, compare_ranges);
    size_t end = 0;
    for (Py_ssize_t number = 0; number < length; number++) {
        size_t pages = ranges[number].size / HEAP_PAGE_BYTES + (ranges[number].size % HEAP_PAGE_BYTES != 0);
        if (ranges[number].offset < end
            || ranges[number].offset + (pages ? pages : 1) * HEAP_PAGE_BYTES > (size_t)capacity) {
            PyErr_SetString(PyExc_ValueError, "live blocks overlap or do not fit");
            PyMem_Free(ranges);
            return NULL;
        }
        end = ranges[number].offset + (pages ? pages : 1) * HEAP_PAGE_BYTES;
    }
    *count = (size_t)length;
    return ranges;
}

static PyObject *heap_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords)
{
    static char *names[] = {"memory", "live", NULL};
    Py_buffer memory;
    PyObject *live = NULL;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "w*|O:Heap", names, &memory, &live))
        return NULL;
    Heap *self = NULL;
    struct heap_range *ranges = NULL;
    size_t count = 0;
    if ((uintptr_t)memory.buf % HEAP_PAGE_BYTES) {
        PyErr_SetString(PyExc_ValueError, "the memory has to start at a page");
        goto failed;
    }
    if ((size_t)memory.len / HEAP_PAGE_BYTES >= UINT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "the memory is larger than 16 TiB");
        goto failed;
    }
    if (live && !(ranges = read_ranges(live, memory.len, &count)))
        goto failed;
    self = (Heap *)type->tp_alloc(type, 0);
    if (!self)
        goto failed;
    self->heap = heap_create(memory.buf, (size_t)memory.len, ranges, count);
    if (!self->heap) {
        PyErr_NoMemory();
        goto failed;
    }
    self->memory = memory;
    PyMem_Free(ranges);
    return (PyObject *)self;

failed:
    PyMem_Free(ranges);
    Py_XDECREF(self);
    PyBuffer_Release(&memory);
    return NULL;
}

static void heap_dealloc(PyObject *object)
{
    Heap *self = (Heap *)object;
    PyTypeObject *type = Py_TYPE(object);
    if (self->heap) {
        heap_destroy(self->heap);
        PyBuffer_Release(&self->memory);
    }
    type->tp_free(object);
    Py_DECREF(type);
}

static int as_offset(PyObject *argument, size_t *offset)
{
    *offset = PyLong_AsSize_t(argument);
    return !(*offset == (size_t)-1 && PyErr_Occurred());
}

static PyObject *method_allocate(PyObject *self, PyObject *argument)
{
    size_t size, offset;
    if (!as_offset(argument, &size))
        return NULL;
    offset = heap_allocate(((Heap *)self)->heap, size, HEAP_SEALED);
    if (offset == HEAP_NONE)
        Py_RETURN_NONE;
    return PyLong_FromSize_t(offset);
}

static PyObject *method_free(PyObject *self, PyObject *argument)
{
    size_t offset;
    if (!as_offset(argument, &offset))
        return NULL;
    if (!heap_release(((Heap *)self)->heap, offset, HEAP_SEALED)) {
        PyErr_SetObject(PyExc_KeyError, argument);
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *method_array_block(PyObject *self, PyObject *argument)
{
    size_t address;
    struct heap_range block;
    if (!as_offset(argument, &address))
        return NULL;
    if (!heap_array_block(((Heap *)self)->heap, (const void *)address, &block))
        Py_RETURN_NONE;
    return Py_BuildValue("nn", (Py_ssize_t)block.offset, (Py_ssize_t)block.size);
}

static PyObject *method_seal(PyObject *self, PyObject *argument)
{
    size_t offset;
    if (!as_offset(argument, &offset))
        return NULL;
    if (!heap_seal(((Heap *)self)->heap, offset)) {
        PyErr_SetObject(PyExc_KeyError, argument);
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *method_trim(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    Py_BEGIN_ALLOW_THREADS
    heap_trim(((Heap *)self)->heap);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *method_close(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    heap_close(((Heap *)self)->heap);
    Py_RETURN_NONE;
}

static PyObject *method_mark(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    heap_mark(((Heap *)self)->heap);
    Py_RETURN_NONE;
}

/* Return offset and size of every used or every free block, in order of their offsets. */
static PyObject *list_ranges(PyObject *self, int used)
{
    size_t count;
    struct heap_range *ranges = heap_ranges(((Heap *)self)->heap, used, &count);
    if (!ranges)
        return PyErr_NoMemory();
    PyObject *found = PyList_New((Py_ssize_t)count);
    for (size_t number = 0; found && number < count; number++) {
        PyObject *pair = Py_BuildValue("nn", (Py_ssize_t)ranges[number].offset, (Py_ssize_t)ranges[number].size);
        if (pair)
            PyList_SET_ITEM(found, (Py_ssize_t)number, pair);
        else
            Py_CLEAR(found);
    }
    free(ranges);
    return found;
}

static PyObject *method_free_ranges(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    return list_ranges(self, 0);
}

static PyObject *get_used(PyObject *self, void *Py_UNUSED(closure))
{
    PyObject *pairs = list_ranges(self, 1);
    PyObject *found = pairs ? PyDict_New() : NULL;
    if (found && PyDict_MergeFromSeq2(found, pairs, 1))
        Py_CLEAR(found);
    Py_XDECREF(pairs);
    return found;
}

static PyObject *get_used_bytes(PyObject *self, void *Py_UNUSED(closure))
{
    return PyLong_FromSize_t(heap_used_bytes(((Heap *)self)->heap));
}

static PyObject *get_peak_bytes(PyObject *self, void *Py_UNUSED(closure))
{
    return PyLong_FromSize_t(heap_peak_bytes(((Heap *)self)->heap));
}

static PyObject *get_capacity_bytes(PyObject *self, void *Py_UNUSED(closure))
{
    return PyLong_FromSize_t(heap_capacity(((Heap *)self)->heap));
}

static PyObject *get_largest_free_bytes(PyObject *self, void *Py_UNUSED(closure))
{
    return PyLong_FromSize_t(heap_largest_free(((Heap *)self)->heap));
}

static PyMethodDef heap_methods[] = {
    {"allocate", method_allocate, METH_O,
     "Return the offset of a new block for the store, or None where no free block is large enough."},
    {"free", method_free, METH_O,
     "Release the store's hold on a block. Raises KeyError if the store has none at the offset."},
    {"array_block", method_array_block, METH_O,
     "Return offset and size of the array's block that contains an address, or None."},
    {"seal", method_seal, METH_O,
     "Make the store a holder of a block that an array owns. Raises KeyError if it cannot be, or is already."},
    {"trim", method_trim, METH_NOARGS, "Give the pages of all free blocks back to the system."},
    {"close", method_close, METH_NOARGS, "Allocate no more blocks; blocks in use stay."},
    {"mark", method_mark, METH_NOARGS, "Start to measure the peak of the bytes in use."},
    {"free_ranges", method_free_ranges, METH_NOARGS,
     "Return offset and size of every free block, in order of their offsets."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef heap_attributes[] = {
    {"used", get_used, NULL, "Size in bytes of each block in use, by its offset.", NULL},
    {"used_bytes", get_used_bytes, NULL, "Bytes of all blocks in use.", NULL},
    {"peak_bytes", get_peak_bytes, NULL, "Largest growth of the bytes in use since the mark.", NULL},
    {"capacity_bytes", get_capacity_bytes, NULL, "Bytes of all blocks, free or not.", NULL},
    {"largest_free_bytes", get_largest_free_bytes, NULL, "Size of the largest block that can be allocated now.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot heap_slots[] = {
    {Py_tp_new, heap_new},
    {Py_tp_dealloc, heap_dealloc},
    {Py_tp_methods, heap_methods},
    {Py_tp_getset, heap_attributes},
    {Py_tp_doc, "Hands out blocks of an arena to the store and to arrays."},
    {0, NULL},
};

static PyType_Spec heap_spec = {
    .name = "dask_mars.store._arena.Heap",
    .basicsize = sizeof(Heap),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = heap_slots,
};

/* -- Quota ------------------------------------------------------------------------------------------------------*/

static PyTypeObject *heap_type;

typedef struct {
    PyObject_HEAD
    struct quota quota;
    int is_made;
    Heap *heap;
    /* Keeps the control page mapped. */
    Py_buffer page;
} Quota;

static PyObject *quota_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords)
{
    static char *names[] = {"heap", "page", "wake", "engine", NULL};
    PyObject *heap;
    Py_buffer page;
    int wake, engine;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O!w*ii:Quota", names, heap_type, &heap, &page, &wake,
                                     &engine))
        return NULL;
    if ((size_t)page.len < sizeof(struct quota_page) || (uintptr_t)page.buf % _Alignof(struct quota_page)) {
        PyErr_SetString(PyExc_ValueError, "the page is too small, or not aligned");
        PyBuffer_Release(&page);
        return NULL;
    }
    Quota *self = (Quota *)type->tp_alloc(type, 0);
    if (!self) {
        PyBuffer_Release(&page);
        return NULL;
    }
    self->heap = (Heap *)Py_NewRef(heap);
    self->page = page;
    self->is_made = 1;
    quota_init(&self->quota, self->heap->heap, page.buf, wake, (pid_t)engine);
    return (PyObject *)self;
}

static void quota_dealloc(PyObject *object)
{
    Quota *self = (Quota *)object;
    PyTypeObject *type = Py_TYPE(object);
    if (self->is_made) {
        quota_destroy(&self->quota);
        PyBuffer_Release(&self->page);
        Py_DECREF(self->heap);
    }
    type->tp_free(object);
    Py_DECREF(type);
}

static PyObject *method_begin(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    quota_begin(&((Quota *)self)->quota);
    Py_RETURN_NONE;
}

static PyObject *method_publish(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    quota_publish(&((Quota *)self)->quota);
    Py_RETURN_NONE;
}

static PyObject *method_admit(PyObject *self, PyObject *argument)
{
    size_t size;
    if (!as_offset(argument, &size))
        return NULL;
    return PyBool_FromLong(quota_admit(&((Quota *)self)->quota, size));
}

static PyObject *method_excuse(PyObject *self, PyObject *argument)
{
    size_t size;
    if (!as_offset(argument, &size))
        return NULL;
    quota_excuse(&((Quota *)self)->quota, size);
    Py_RETURN_NONE;
}

static PyObject *method_raise_exceeded(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    return PyBool_FromLong(quota_raise_exceeded(&((Quota *)self)->quota));
}

static PyObject *get_growth(PyObject *self, void *Py_UNUSED(closure))
{
    return PyLong_FromSize_t(quota_growth(&((Quota *)self)->quota));
}

static PyObject *get_refusal(PyObject *self, void *Py_UNUSED(closure))
{
    size_t refused_bytes;
    int refusal = (int)quota_refusal(&((Quota *)self)->quota, &refused_bytes);
    return Py_BuildValue("in", refusal, (Py_ssize_t)refused_bytes);
}

static PyMethodDef quota_methods[] = {
    {"begin", method_begin, METH_NOARGS, "Count growth from now on: an operand begins."},
    {"publish", method_publish, METH_NOARGS, "Report to the engine the bytes that arrays own and the store does not count."},
    {"admit", method_admit, METH_O, "Return whether a number of bytes may be taken, after the engine's answer if necessary."},
    {"excuse", method_excuse, METH_O, "Subtract a number of bytes from the growth."},
    {"raise_exceeded", method_raise_exceeded, METH_NOARGS,
     "Return, once, whether small objects have taken memory that was refused."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef quota_attributes[] = {
    {"growth_bytes", get_growth, NULL, "Growth of memory since the operand began.", NULL},
    {"refusal", get_refusal, NULL, "Reason of a refusal since then, 0 for none, and the growth that was refused, in bytes.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot quota_slots[] = {
    {Py_tp_new, quota_new},
    {Py_tp_dealloc, quota_dealloc},
    {Py_tp_methods, quota_methods},
    {Py_tp_getset, quota_attributes},
    {Py_tp_doc, "The memory that a worker's arrays and objects may take."},
    {0, NULL},
};

static PyType_Spec quota_spec = {
    .name = "dask_mars.store._arena.Quota",
    .basicsize = sizeof(Quota),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = quota_slots,
};

static PyTypeObject *quota_type;

/* -- NumPy's allocator ------------------------------------------------------------------------------------------*/

/* Feature version of NumPy 2.5, whose default allocator takes memory from Python. */
#define NUMPY_ASKS_PYTHON 0x16

/* Allocator for blocks outside the heap: NumPy's default if that uses the C library, else the C library. Python would
 * count such blocks too, or take them from an allocator whose blocks the C library cannot measure. */
static PyDataMemAllocator plain;

static void *library_malloc(void *Py_UNUSED(context), size_t size)
{
    return malloc(size);
}

static void *library_calloc(void *Py_UNUSED(context), size_t count, size_t item)
{
    return calloc(count, item);
}

static void *library_realloc(void *Py_UNUSED(context), void *address, size_t size)
{
    return realloc(address, size);
}

static void library_free(void *Py_UNUSED(context), void *address, size_t Py_UNUSED(size))
{
    free(address);
}

static const char capsule_name[] = "mem_handler";

static int choose_plain(void)
{
    PyDataMem_Handler *handler = PyCapsule_GetPointer(PyDataMem_DefaultHandler, capsule_name);
    if (!handler)
        return -1;
    if (PyArray_GetNDArrayCFeatureVersion() < NUMPY_ASKS_PYTHON)
        plain = handler->allocator;
    else
        plain = (PyDataMemAllocator){NULL, library_malloc, library_calloc, library_realloc, library_free};
    return 0;
}

typedef struct {
    PyDataMem_Handler handler;
    Heap *owner;
    struct heap *heap;
    size_t threshold;
    /* May be absent, and so may the object that owns it. */
    struct quota *quota;
    PyObject *quota_owner;
} Hook;

/* Return whether a block of this size may be taken. */
static int admitted(Hook *hook, size_t size)
{
    return !hook->quota || quota_admit(hook->quota, size);
}

/* Count a large private block of an array, by its real size, which may exceed the requested one. */
static void *noted(Hook *hook, void *address)
{
    size_t size = hook->quota && address ? malloc_usable_size(address) : 0;
    if (size >= hook->threshold)
        quota_note_private(hook->quota, size, 0);
    return address;
}

static void note_freed(Hook *hook, void *address)
{
    size_t size = hook->quota && address ? malloc_usable_size(address) : 0;
    if (size >= hook->threshold)
        quota_note_private(hook->quota, 0, size);
}

static void *hook_malloc(void *context, size_t size)
{
    Hook *hook = context;
    if (size < hook->threshold)
        return noted(hook, plain.malloc(plain.ctx, size));
    if (!admitted(hook, size))
        return NULL;
    void *address = heap_malloc(hook->heap, size);
    return address ? address : noted(hook, plain.malloc(plain.ctx, size));
}

static void *hook_calloc(void *context, size_t count, size_t item)
{
    Hook *hook = context;
    if (item && count > (size_t)-1 / item)
        return NULL;
    size_t size = count * item;
    if (size < hook->threshold)
        return noted(hook, plain.calloc(plain.ctx, count, item));
    if (!admitted(hook, size))
        return NULL;
    void *address = heap_calloc(hook->heap, size);
    return address ? address : noted(hook, plain.calloc(plain.ctx, count, item));
}

static void *hook_realloc(void *context, void *address, size_t size)
{
    Hook *hook = context;
    size_t old_size;
    /* Private blocks stay private. */
    if (!heap_owns(hook->heap, address)) {
        size_t before = hook->quota && address ? malloc_usable_size(address) : 0;
        if (size >= hook->threshold && size > before && !admitted(hook, size - before))
            return NULL;
        note_freed(hook, address);
        void *grown = plain.realloc(plain.ctx, address, size);
        noted(hook, grown ? grown : address);
        return grown;
    }
    /* If the block cannot grow in place, both blocks exist for a moment. */
    struct heap_range block;
    if (heap_array_block(hook->heap, address, &block) && size > block.size && !admitted(hook, size - block.size))
        return NULL;
    void *moved = heap_realloc(hook->heap, address, size, &old_size);
    if (moved)
        return moved;
    moved = noted(hook, plain.malloc(plain.ctx, size));
    if (moved) {
        memcpy(moved, address, old_size < size ? old_size : size);
        heap_free(hook->heap, address);
    }
    return moved;
}

static void hook_free(void *context, void *address, size_t size)
{
    Hook *hook = context;
    if (heap_owns(hook->heap, address))
        heap_free(hook->heap, address);
    else {
        note_freed(hook, address);
        plain.free(plain.ctx, address, size);
    }
}

static void forget_hook(PyObject *capsule)
{
    /* The context is the hook's own address: the handler is its first member. */
    Hook *hook = PyCapsule_GetPointer(capsule, capsule_name);
    Py_DECREF(hook->owner);
    Py_XDECREF(hook->quota_owner);
    PyMem_Free(hook);
}

static PyObject *set_handler(PyObject *capsule)
{
    PyObject *before = PyDataMem_SetHandler(capsule);
    if (!before)
        return NULL;
    Py_DECREF(before);
    Py_RETURN_NONE;
}

static PyObject *install(PyObject *Py_UNUSED(module), PyObject *arguments, PyObject *keywords)
{
    static char *names[] = {"heap", "threshold_bytes", "quota", NULL};
    PyObject *owner, *quota = Py_None;
    Py_ssize_t threshold;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O!n|O:install", names, heap_type, &owner, &threshold,
                                     &quota))
        return NULL;
    if (quota != Py_None && !PyObject_TypeCheck(quota, quota_type)) {
        PyErr_SetString(PyExc_TypeError, "quota has to be a Quota or None");
        return NULL;
    }
    if (threshold < 1) {
        PyErr_SetString(PyExc_ValueError, "the threshold has to be positive");
        return NULL;
    }
    Hook *hook = PyMem_Calloc(1, sizeof(Hook));
    if (!hook)
        return PyErr_NoMemory();
    strcpy(hook->handler.name, "dask_mars");
    hook->handler.version = 1;
    hook->handler.allocator = (PyDataMemAllocator){hook, hook_malloc, hook_calloc, hook_realloc, hook_free};
    hook->threshold = (size_t)threshold;
    hook->heap = ((Heap *)owner)->heap;
    PyObject *capsule = PyCapsule_New(hook, capsule_name, forget_hook);
    if (!capsule) {
        PyMem_Free(hook);
        return NULL;
    }
    /* Arrays hold the capsule, and so the heap and its memory, until the last of them is freed. */
    hook->owner = (Heap *)Py_NewRef(owner);
    if (quota != Py_None) {
        hook->quota_owner = Py_NewRef(quota);
        hook->quota = &((Quota *)quota)->quota;
    }
    PyObject *result = set_handler(capsule);
    Py_DECREF(capsule);
    return result;
}

static PyObject *uninstall(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    return set_handler(PyDataMem_DefaultHandler);
}

/* The quota of Python's objects, needed until the very end of the process. */
static PyObject *objects_quota;

static PyObject *limit_objects(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    PyObject *quota;
    int signal_number = 0;
    if (!PyArg_ParseTuple(arguments, "O|i:limit_objects", &quota, &signal_number))
        return NULL;
    if (quota != Py_None && !PyObject_TypeCheck(quota, quota_type)) {
        PyErr_SetString(PyExc_TypeError, "quota has to be a Quota or None");
        return NULL;
    }
    int is_limited = objects_limit(quota == Py_None ? NULL : &((Quota *)quota)->quota, signal_number);
    if (is_limited)
        Py_XSETREF(objects_quota, quota == Py_None ? NULL : Py_NewRef(quota));
    return PyBool_FromLong(is_limited);
}

static PyObject *can_limit_objects(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    return PyBool_FromLong(objects_can_be_limited());
}

/* -- the module -------------------------------------------------------------------------------------------------*/

static PyMethodDef functions[] = {
    {"can_limit_objects", can_limit_objects, METH_NOARGS,
     "Return whether Python's objects can have a quota, which depends on Python's allocator."},
    {"install", (PyCFunction)(void (*)(void))install, METH_VARARGS | METH_KEYWORDS,
     "Take memory for arrays of at least a size in this context from a heap, as long as it has room."},
    {"limit_objects", limit_objects, METH_VARARGS,
     "Make Python's objects request large blocks from a quota, and return whether they can; a signal reports refused "
     "small ones. None removes the quota."},
    {"uninstall", uninstall, METH_NOARGS, "Restore NumPy's own allocator in this context."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_arena",
    .m_doc = "Arrays that are created in shared memory.",
    .m_size = -1,
    .m_methods = functions,
};

PyMODINIT_FUNC PyInit__arena(void)
{
    import_array();
    if (choose_plain())
        return NULL;
    PyObject *module = PyModule_Create(&definition);
    if (!module)
        return NULL;
#ifdef Py_GIL_DISABLED
    PyUnstable_Module_SetGIL(module, Py_MOD_GIL_NOT_USED);
#endif
    heap_type = (PyTypeObject *)PyType_FromSpec(&heap_spec);
    quota_type = (PyTypeObject *)PyType_FromSpec(&quota_spec);
    if (!heap_type || PyModule_AddObjectRef(module, "Heap", (PyObject *)heap_type) || !quota_type
        || PyModule_AddObjectRef(module, "Quota", (PyObject *)quota_type)) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
