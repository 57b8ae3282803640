#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "_objects.h"

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

static PyMemAllocatorEx plain;
static PyObjectArenaAllocator plain_arenas;
static int is_installed;
/* NULL as long as nothing is counted. */
static struct quota *asked;
static int refused_signal;
/* From which size on the C library maps blocks otherwise; 0 where it is left to it. */
static int kept_threshold;
static size_t freed;

static void map_from(int size)
{
#ifdef __GLIBC__
    mallopt(M_MMAP_THRESHOLD, size);
#endif
}

static void begin_large(size_t size)
{
    if (size >= MAPPED_BYTES && kept_threshold)
        map_from((int)MAPPED_BYTES);
}

static void end_large(size_t size)
{
    if (size >= MAPPED_BYTES && kept_threshold)
        map_from(kept_threshold);
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

static void *objects_malloc(void *Py_UNUSED(context), size_t size)
{
    if (size < PERHAPS_LARGE_BYTES)
        return plain.malloc(plain.ctx, size);
    if (size >= LARGE_BYTES && !admitted(asked, size))
        return NULL;
    begin_large(size);
    void *address = plain.malloc(plain.ctx, size);
    end_large(size);
    note(asked, counted(address), 0);
    return address;
}

static void *objects_calloc(void *Py_UNUSED(context), size_t count, size_t item)
{
    if (item && count > (size_t)-1 / item)
        return NULL;
    if (count * item < PERHAPS_LARGE_BYTES)
        return plain.calloc(plain.ctx, count, item);
    if (count * item >= LARGE_BYTES && !admitted(asked, count * item))
        return NULL;
    begin_large(count * item);
    void *address = plain.calloc(plain.ctx, count, item);
    end_large(count * item);
    note(asked, counted(address), 0);
    return address;
}

static void *objects_realloc(void *Py_UNUSED(context), void *address, size_t size)
{
    size_t before = address ? malloc_usable_size(address) : 0;
    if (size < PERHAPS_LARGE_BYTES && before < LARGE_BYTES)
        return plain.realloc(plain.ctx, address, size);
    if (before < LARGE_BYTES)
        before = 0;
    if (size >= LARGE_BYTES && size > before && !admitted(asked, size - before))
        return NULL;
    begin_large(size);
    void *moved = plain.realloc(plain.ctx, address, size);
    end_large(size);
    if (moved)
        note(asked, counted(moved), before);
    return moved;
}

static void objects_free(void *Py_UNUSED(context), void *address)
{
    size_t size = counted(address);
    plain.free(plain.ctx, address);
    note(asked, 0, size);
    if (size && asked && quota_is_eager(asked)
        && __atomic_add_fetch(&freed, size, __ATOMIC_RELAXED) >= TRIM_BYTES) {
        __atomic_store_n(&freed, 0, __ATOMIC_RELAXED);
        quota_trim_private();
    }
}

static void *arena_alloc(void *Py_UNUSED(context), size_t size)
{
    struct quota *quota = asked;
    /* Once it is refused a single call may take many more, before the task can be interrupted. */
    if (quota && !quota_is_exceeded(quota) && !admitted(quota, size)) {
        quota_exceed(quota);
        /* Its handler raises in the task. Nothing happens where there is none. */
        PyErr_SetInterruptEx(refused_signal);
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

int objects_limit(struct quota *quota, int signal_number)
{
    asked = quota;
    refused_signal = signal_number;
    if (is_installed || !quota)
        return 1;
    PyMem_GetAllocator(PYMEM_DOMAIN_RAW, &plain);
    /* Those that check blocks (PYTHONMALLOC=debug) hand out addresses that the C library does not know. */
    if (plain.ctx) {
        asked = NULL;
        return 0;
    }
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
