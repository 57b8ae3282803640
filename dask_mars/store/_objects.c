#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "_objects.h"

#ifdef Py_GIL_DISABLED

/* Objects come from mimalloc, which asks neither of the allocators that can be replaced. */
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

/* Blocks that may have become larger than what was asked for, by less than a half, are looked at. */
#define LARGE_BYTES ((size_t)1 << 20)
#define PERHAPS_LARGE_BYTES (LARGE_BYTES / 2)
/* So much is asked for at once: who has taken little will take more. */
#define AHEAD_BYTES ((size_t)8 << 20)

/* Blocks of this size and more are mapped where they can be: they grow without being copied, and leave when they are
 * freed, which is what the C library does by itself unless it is told to keep memory. */
#define MAPPED_BYTES ((size_t)8 << 20)

/* While others want memory, so much is freed before the C library is made to give back what it keeps of it. */
#define TRIM_BYTES ((size_t)32 << 20)

/* So much more small objects get once they were refused: time for the task to be interrupted where Python code runs. A
 * single call, such as `list(range(n))`, cannot be, and is refused a small block then, as if memory had run out. */
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
/* From which size on the C library maps blocks otherwise; 0 where it is left to it. */
static int kept_threshold;
static size_t freed_since_trim;

static void map_from(int size)
{
#ifdef __GLIBC__
    mallopt(M_MMAP_THRESHOLD, size);
#endif
}

/* Return the size of a block that counts, else 0. */
static size_t counted(void *address)
{
    size_t size = address ? malloc_usable_size(address) : 0;
    return size >= LARGE_BYTES ? size : 0;
}

/* Return whether so many bytes more may be taken. Where there is room for more than that it is asked for at once. */
static int admitted(struct quota *quota, size_t size)
{
    if (!quota || quota_has_room(quota, size) || (size < AHEAD_BYTES && quota_admit(quota, AHEAD_BYTES)))
        return 1;
    /* A result that is there has to go somewhere, be it to disk, and may need memory on its way. */
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

/* Ask for what a block of a size takes more than is there. Return 0 where it is refused. */
static int begin_block(size_t size, size_t more)
{
    if (size >= LARGE_BYTES && !admitted(asked, more))
        return 0;
    if (size >= MAPPED_BYTES && kept_threshold)
        map_from((int)MAPPED_BYTES);
    return 1;
}

/* Note a block, in the place of one of which so many bytes counted. */
static void *end_block(size_t size, void *address, size_t before)
{
    if (size >= MAPPED_BYTES && kept_threshold)
        map_from(kept_threshold);
    if (address)
        note(asked, counted(address), before);
    return address;
}

/* Return whether the small block that is asked for had no room in an arena, and is not to be had elsewhere. */
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
    return begin_block(size, size) ? end_block(size, plain.malloc(plain.ctx, size), 0) : NULL;
}

static void *objects_calloc(void *Py_UNUSED(context), size_t count, size_t item)
{
    if (item && count > (size_t)-1 / item)
        return NULL;
    size_t size = count * item;
    if (size < PERHAPS_LARGE_BYTES)
        return take_block_refused() ? NULL : plain.calloc(plain.ctx, count, item);
    return begin_block(size, size) ? end_block(size, plain.calloc(plain.ctx, count, item), 0) : NULL;
}

static void *objects_realloc(void *Py_UNUSED(context), void *address, size_t size)
{
    size_t before = counted(address);
    if (size < PERHAPS_LARGE_BYTES && !before)
        return plain.realloc(plain.ctx, address, size);
    if (size > before && !begin_block(size, size - before))
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

/* See to it that small objects of a task do not take more than they may. Return whether they get another arena. */
static int arena_admitted(struct quota *quota, size_t size)
{
    if (quota_may_grow(quota, size) && admitted(quota, size))
        return 1;
    if (quota_exceed(quota))
        /* Its handler raises in the task. Nothing happens where there is none. */
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
    /* Those that check blocks (PYTHONMALLOC=debug) hand out addresses that the C library does not know. */
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
