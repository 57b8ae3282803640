#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "_objects.h"

#ifdef Py_GIL_DISABLED

/* Objects come from mimalloc, which uses neither of the replaceable allocators. */
int objects_can_be_limited(void)
{
    return 0;
}

int objects_limit(struct quota *Py_UNUSED(quota), int Py_UNUSED(signal_number))
{
    return 0;
}

#else

#ifdef __linux__
#include <malloc.h>
#elif defined(__APPLE__)
#include <malloc/malloc.h>
#define malloc_usable_size malloc_size
#endif

/* Minimum size of blocks that count; and of requests whose block may be that large, so that it is measured. */
#define LARGE_BYTES ((size_t)1 << 20)
#define PERHAPS_LARGE_BYTES (LARGE_BYTES / 2)
/* Bytes to request ahead: a task that takes a little will take more. */
#define AHEAD_BYTES ((size_t)8 << 20)

/* Blocks that grow to this size are mapped where possible: they grow further without a copy. From the second size on
 * all blocks are mapped, so that they are unmapped when they are freed; the C library does the same unless it is
 * configured to keep memory. To map and fault in each chunk of a file takes as long as to decompress it. */
#define GROWN_BYTES ((size_t)8 << 20)
#define MAPPED_BYTES ((size_t)32 << 20)

/* Bytes to free, while memory is short, between two calls that return the C library's free memory. */
#define TRIM_BYTES ((size_t)32 << 20)

/* Bytes that small objects may take after a refusal, before the task is interrupted in its Python code. A single call,
 * such as `list(range(n))`, cannot be interrupted, and then fails to get a small block, as if memory had run out. */
#define PAST_REFUSAL_BYTES ((size_t)4 << 20)

static PyMemAllocatorEx plain;
static PyObjectArenaAllocator plain_arenas;
static int is_installed;
/* NULL as long as nothing is counted. */
static struct quota *asked;
static int refused_signal;
/* The thread that runs tasks. */
static unsigned long task_thread;
/* An arena was just refused: Python asks for the small block itself next, in the same thread. */
static _Thread_local int is_block_refused;
/* Size from which on the C library maps blocks by configuration; 0 for its own choice. */
static int kept_threshold;
static size_t freed_since_trim;

static void map_from(int size)
{
#ifdef __GLIBC__
    mallopt(M_MMAP_THRESHOLD, size);
#endif
}

/* Return the size of a block if it is large enough to count, else 0. */
static size_t counted(void *address)
{
    size_t size = address ? malloc_usable_size(address) : 0;
    return size >= LARGE_BYTES ? size : 0;
}

/* Return whether `size` more bytes may be taken; small requests are rounded up if there is room. */
static int admitted(struct quota *quota, size_t size)
{
    if (!quota || quota_has_room(quota, size) || (size < AHEAD_BYTES && quota_admit(quota, AHEAD_BYTES)))
        return 1;
    /* A computed result has to be stored, perhaps on disk, which may need memory. */
    int is_admitted = quota_admit(quota, size) || quota_is_sealing(quota);
    if (is_admitted)
        quota_forget_refusal(quota);
    return is_admitted;
}

static void note(struct quota *quota, size_t taken, size_t freed)
{
    if (quota && taken != freed)
        quota_note_private(quota, taken, freed);
}

/* Request `more` bytes for a block of a size, which is mapped from another size on. Return 0 if they are refused. */
static int begin_block(size_t size, size_t more, size_t mapped_from)
{
    if (size >= LARGE_BYTES && !admitted(asked, more))
        return 0;
    if (size >= mapped_from && kept_threshold)
        map_from((int)mapped_from);
    return 1;
}

/* Count a block that replaces one of which `before` bytes were counted. */
static void *end_block(size_t size, void *address, size_t before)
{
    if (size >= GROWN_BYTES && kept_threshold)
        map_from(kept_threshold);
    if (address)
        note(asked, counted(address), before);
    return address;
}

/* Return whether an arena was refused for the requested small block, so that the block must fail too. */
static int take_block_refused(void)
{
    int is_refused = is_block_refused;
    if (is_refused)
        is_block_refused = 0;
    return is_refused;
}

static void *objects_malloc(void *Py_UNUSED(context), size_t size)
{
    if (size < PERHAPS_LARGE_BYTES)
        return take_block_refused() ? NULL : plain.malloc(plain.ctx, size);
    return begin_block(size, size, MAPPED_BYTES) ? end_block(size, plain.malloc(plain.ctx, size), 0) : NULL;
}

static void *objects_calloc(void *Py_UNUSED(context), size_t count, size_t item)
{
    if (item && count > (size_t)-1 / item)
        return NULL;
    size_t size = count * item;
    if (size < PERHAPS_LARGE_BYTES)
        return take_block_refused() ? NULL : plain.calloc(plain.ctx, count, item);
    return begin_block(size, size, MAPPED_BYTES) ? end_block(size, plain.calloc(plain.ctx, count, item), 0) : NULL;
}

static void *objects_realloc(void *Py_UNUSED(context), void *address, size_t size)
{
    size_t before = counted(address);
    if (size < PERHAPS_LARGE_BYTES && !before)
        return plain.realloc(plain.ctx, address, size);
    if (size > before && !begin_block(size, size - before, GROWN_BYTES))
        return NULL;
    return end_block(size, plain.realloc(plain.ctx, address, size), before);
}

static void objects_free(void *Py_UNUSED(context), void *address)
{
    size_t size = counted(address);
    plain.free(plain.ctx, address);
    note(asked, 0, size);
    if (size && asked && quota_is_eager(asked)
        && __atomic_add_fetch(&freed_since_trim, size, __ATOMIC_RELAXED) >= TRIM_BYTES) {
        __atomic_store_n(&freed_since_trim, 0, __ATOMIC_RELAXED);
        quota_trim_private();
    }
}

/* Hold small objects of a task to the quota. Return whether they get another arena. */
static int arena_admitted(struct quota *quota, size_t size)
{
    if (quota_may_grow(quota, size) && admitted(quota, size))
        return 1;
    if (quota_exceed(quota))
        /* The signal's handler raises in the task; without a handler nothing happens. */
        PyErr_SetInterruptEx(refused_signal);
    else if (PyThread_get_thread_ident() == task_thread && quota_raise_past(quota, PAST_REFUSAL_BYTES))
        return 0;
    return 1;
}

static void *arena_alloc(void *Py_UNUSED(context), size_t size)
{
    struct quota *quota = asked;
    if (quota && !arena_admitted(quota, size)) {
        is_block_refused = 1;
        return NULL;
    }
    void *address = plain_arenas.alloc(plain_arenas.ctx, size);
    if (address)
        note(quota, size, 0);
    return address;
}

static void arena_free(void *Py_UNUSED(context), void *address, size_t size)
{
    note(asked, 0, size);
    plain_arenas.free(plain_arenas.ctx, address, size);
}

int objects_can_be_limited(void)
{
    if (!is_installed)
        PyMem_GetAllocator(PYMEM_DOMAIN_RAW, &plain);
    /* Debugging allocators (PYTHONMALLOC=debug) return addresses that the C library does not know. */
    return !plain.ctx;
}

int objects_limit(struct quota *quota, int signal_number)
{
    if (!objects_can_be_limited())
        return 0;
    asked = quota;
    refused_signal = signal_number;
    task_thread = PyThread_get_thread_ident();
    if (is_installed || !quota)
        return 1;
    const char *threshold = getenv("MALLOC_MMAP_THRESHOLD_");
    long kept = threshold ? strtol(threshold, NULL, 10) : 0;
    kept_threshold = kept > (long)MAPPED_BYTES && kept <= INT_MAX ? (int)kept : 0;
    PyMemAllocatorEx objects = {NULL, objects_malloc, objects_calloc, objects_realloc, objects_free};
    PyMem_SetAllocator(PYMEM_DOMAIN_RAW, &objects);
    PyObject_GetArenaAllocator(&plain_arenas);
    PyObjectArenaAllocator arenas = {NULL, arena_alloc, arena_free};
    PyObject_SetArenaAllocator(&arenas);
    is_installed = 1;
    return 1;
}

#endif
