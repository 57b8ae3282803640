/* Programs of elementwise steps, run block by block by inner loops.
 *
 * A program has steps, the shape that they work on, and the numbers of arrays and buffers that they read and write.
 * Intermediate results are in buffers of one block each, which stay in the first-level cache. A block is a run of
 * elements in the order of the shape, and may begin and end anywhere in a row.
 */

#ifndef DASK_MARS_BLOCKS_H
#define DASK_MARS_BLOCKS_H

#include "_loops.h"
#include "_source.h"

/* Maximum number of arguments of a step, its result included. */
#define MOST_ARGUMENTS 8
#define MOST_DIMENSIONS 32
#define MOST_BUFFERS 255
#define MOST_BLOCK (1 << 20)
#define LARGEST_ITEM 32
/* Elements: groups of vector instructions begin at multiples of this. */
#define GRID 64

/* Flags of a step. POSITIONAL: the last bit of an element may depend on neighbouring elements. CAST_BEFORE: NumPy would
 * copy the arguments to buffers with their own alignment. REDUCTION: its arguments are the total, the source, and the
 * total's initial value. SUM: it adds doubles. OF_RESULTS: only it reads the result of the step before.
 * PAIRWISE: NumPy adds the numbers of a row pairwise. PAIR: it also writes the buffer before the last one.
 * FORWARD: the last bit of an element may be another one if a stride is negative. */
enum {
    POSITIONAL = 1, CAST_BEFORE = 2, REDUCTION = 4, SUM = 8, OF_RESULTS = 16, FORWARD = 32, PAIRWISE = 64, PAIR = 128
};

struct step {
    const struct loop *loop;
    int arguments, flags;
    /* Numbers of arrays, or -1 - the number of a buffer. A step writes the last one, a reduction its total. */
    int references[MOST_ARGUMENTS];
};

struct program {
    struct step *steps;
    npy_intp step_count, array_count, buffer_count;
    /* Sizes in bytes. */
    npy_intp *array_items, *buffer_items;
    npy_intp shape[MOST_DIMENSIONS];
    int dimensions;
    /* Whether the axes of arrays are in the opposite order. */
    int reversed;
    npy_intp size, block;
};

struct array {
    char *data;
    int dimensions;
    const npy_intp *lengths, *strides;
    /* Generates all elements in order; NULL if `data` has them. */
    struct source *source;
};

/* REFUSED: the arrays have an unsupported layout, or values that only NumPy can handle.
 * ERRORS: one of the floating point errors to watch has happened. FAILED: an exception is set. */
enum outcome { DONE, REFUSED, ERRORS, FAILED, NO_MEMORY };

/* Return whether steps only read an array, block by block, so that a source may generate it. */
int may_be_made(const struct program *program, npy_intp array);

/* Run over arrays that are broadcast to the program's shape, without the GIL. `interrupted` is called periodically, and
 * returns whether to stop. */
enum outcome run_program(const struct program *program, const struct array *arrays, int watched,
                         int (*interrupted)(void));

#endif
