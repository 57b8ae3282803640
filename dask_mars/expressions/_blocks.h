/* Programs of elementwise steps, run block by block by inner loops.
 *
 * A program knows its steps, the shape that they work on, and how many arrays and buffers they read and write. All
 * that is on the way from the arrays that are given to those that are filled lies in buffers of one block, which stay
 * in the first-level cache. Blocks are runs of elements in the order of the shape, whatever the lengths of its axes.
 */

#ifndef DASK_MARS_BLOCKS_H
#define DASK_MARS_BLOCKS_H

#include "_loops.h"
#include "_source.h"

/* Of one step: its arguments, the result included. */
#define MOST_ARGUMENTS 8
#define MOST_DIMENSIONS 32
#define MOST_BUFFERS 255
#define MOST_BLOCK (1 << 20)
#define LARGEST_ITEM 32
/* As in tiling.py: groups of vector instructions begin at multiples of so many elements. */
#define GRID 64

/* What is said of a step: that the last bit of an element may depend on the elements beside it; that NumPy would take
 * its arguments through buffers, which begin at places of their own; that it is a reduction, with the arguments total,
 * source, and what a total begins with; and that it adds up doubles. */
enum { POSITIONAL = 1, CAST_BEFORE = 2, REDUCTION = 4, SUM = 8 };

struct step {
    const struct loop *loop;
    int arguments, flags;
    /* Numbers of arrays; below zero, -1 - the number of a buffer. The last one is written, or the total. */
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
    /* What makes the elements of all of the shape in order, or NULL if they are there. */
    struct source *source;
};

/* REFUSED: the arrays do not lie as they have to, or hold values that only NumPy knows what to do with.
 * ERRORS: one of the floating point errors to watch has happened. FAILED: an exception is set. */
enum outcome { DONE, REFUSED, ERRORS, FAILED, NO_MEMORY };

/* Say whether an array is only read by steps, block by block, so that a source may make it. */
int may_be_made(const struct program *program, npy_intp array);

/* Run over arrays that are broadcast to the program's shape, without the GIL. Now and then `interrupted` is called,
 * which says whether to stop. */
enum outcome run_program(const struct program *program, const struct array *arrays, int watched,
                         int (*interrupted)(void));

#endif
