/* Programs of elementwise steps: see `_blocks.h`. */

#include "_blocks.h"

#include <fenv.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "_sums.h"

/* Of an array, once axes are joined that can be walked as one. */
#define MOST_AXES 8
/* Runs that are shorter are gathered: each call of a loop costs about as much as 64 elements. */
#define SHORT_RUN 64
/* What repeats itself after so many elements at most is laid out once for all blocks. */
#define MOST_PERIOD 128
/* Results of a reduction over a long run that are kept apart, to be added up pairwise. */
#define PARTS 64
/* Runs of so many elements at most are reduced across, many at once. */
#define MOST_ACROSS 16
/* Calls of loops between two looks whether to stop. */
#define PATIENCE 4096
#define CACHE_LINE 64
/* Elements that a source makes at a time, in whole blocks: few enough to be in a fast cache when they are read. */
#define WINDOW 4096

/* How an array lies in memory: lengths and strides of its axes, the outermost first. */
struct layout {
    int axes;
    npy_intp lengths[MOST_AXES], strides[MOST_AXES];
};

/* A place in an array. */
struct cursor {
    char *pointer;
    npy_intp stride;
    /* Elements left in this run. */
    npy_intp left;
    const struct layout *layout;
    npy_intp index[MOST_AXES];
};

/* An array of short runs, of which each block is copied to a buffer, or one that is made there. */
struct gathered {
    /* The block's elements, or NULL if the array is read where it is. */
    char *block;
    struct cursor cursor;
    struct source *source;
    char *buffer;
    npy_intp item, period;
};

struct argument {
    struct cursor cursor;
    const struct gathered *gathered;
    /* Whether the cursor goes on from block to block: buffers are used again. */
    int moves;
};

struct bound_step {
    const struct step *step;
    struct argument arguments[MOST_ARGUMENTS];
    /* Whether every argument is one run. */
    int simple;
    /* Of a reduction over runs that are longer than a block: its results for this run so far. */
    int parts;
    char *part_memory;
    npy_intp item;
};

struct run {
    const struct program *program;
    struct layout *layouts;
    struct gathered *gathered;
    struct bound_step *steps;
    int watched;
};

/* -- arrays -----------------------------------------------------------------------------------------------------*/

/* Find the axes of an array as it is broadcast to the program's shape; 0 if it cannot be, or there are too many. */
static int find_layout(const struct program *program, const struct array *array, struct layout *layout)
{
    int dimensions = program->dimensions, own = array->dimensions, axes = 0;
    npy_intp lengths[MOST_DIMENSIONS], strides[MOST_DIMENSIONS];
    if (own > dimensions)
        return 0;
    /* From the innermost axis outwards, each joined to the one before if a walk goes on over its end. */
    for (int axis = dimensions - 1; axis >= 0; axis--) {
        npy_intp length = program->shape[axis];
        int own_axis = (program->reversed ? dimensions - 1 - axis : axis) - (dimensions - own);
        npy_intp own_length = own_axis < 0 ? 1 : array->lengths[own_axis];
        if (own_length != length && own_length != 1)
            return 0;
        if (length == 1)
            continue;
        npy_intp stride = own_length == 1 ? 0 : array->strides[own_axis];
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

/* The place of an array's first element. */
static struct cursor first_place(const struct array *array, const struct layout *layout)
{
    int inner = layout->axes - 1;
    return (struct cursor){array->data, layout->strides[inner], layout->lengths[inner], layout, {0}};
}

/* Go on along an axis, and at its end along those around it. */
static void carry(struct cursor *cursor, int axis, npy_intp count)
{
    const struct layout *layout = cursor->layout;
    for (; axis >= 0; axis--, count = 1) {
        cursor->pointer += count * layout->strides[axis];
        cursor->index[axis] += count;
        if (cursor->index[axis] < layout->lengths[axis])
            return;
        cursor->pointer -= layout->lengths[axis] * layout->strides[axis];
        cursor->index[axis] = 0;
    }
}

/* Go on, at most to the end of the run. */
static void move(struct cursor *cursor, npy_intp count)
{
    cursor->pointer += count * cursor->stride;
    cursor->left -= count;
    if (cursor->left || !cursor->layout)
        return;
    int axis = cursor->layout->axes - 1;
    cursor->left = cursor->layout->lengths[axis];
    cursor->pointer -= cursor->left * cursor->stride;
    carry(cursor, axis - 1, 1);
}

/* How many elements a source makes at a time. */
static npy_intp window_elements(const struct program *program)
{
    return program->block < WINDOW ? WINDOW / program->block * program->block : program->block;
}

/* Say how many elements of the array are to be gathered in one buffer, or 0 if it is read where it is. */
static npy_intp gathered_elements(const struct program *program, const struct array *array,
                                  const struct layout *layout, npy_intp *period)
{
    *period = 0;
    if (array->source)
        return window_elements(program);
    if (layout->axes == 1)
        return 0;
    npy_intp inner = 1;
    for (int axis = 1; axis < layout->axes; axis++)
        inner *= layout->lengths[axis];
    if (!layout->strides[0] && inner <= MOST_PERIOD) {
        *period = inner;
        return program->block + inner;
    }
    return layout->lengths[layout->axes - 1] < SHORT_RUN ? program->block : 0;
}

static void copy_elements(struct cursor *cursor, char *target, npy_intp count, npy_intp item)
{
    const struct loop *loop = copy_loop(item);
    while (count > 0) {
        npy_intp part = cursor->left < count ? cursor->left : count;
        char *data[] = {cursor->pointer, target};
        npy_intp strides[] = {cursor->stride, item};
        loop->function(NULL, data, &part, strides, NULL);
        move(cursor, part);
        target += part * item;
        count -= part;
    }
}

/* Lay out what repeats itself: a period more than a block, which may begin anywhere within one. */
static void lay_out(struct gathered *gathered, npy_intp elements)
{
    npy_intp item = gathered->item, done = gathered->period;
    copy_elements(&gathered->cursor, gathered->buffer, done, item);
    while (done < elements) {
        npy_intp part = elements - done < done ? elements - done : done;
        memcpy(gathered->buffer + done * item, gathered->buffer, (size_t)(part * item));
        done += part;
    }
}

/* Have the next block of an array in its buffer. */
static void gather(const struct program *program, struct gathered *gathered, npy_intp start, npy_intp count)
{
    if (gathered->source) {
        npy_intp window = window_elements(program), at = start % window, left = program->size - start;
        if (!at)
            gathered->source->fill(gathered->source, gathered->buffer, (size_t)(left < window ? left : window));
        gathered->block = gathered->buffer + at * gathered->item;
    }
    else if (gathered->period)
        gathered->block = gathered->buffer + start % gathered->period * gathered->item;
    else
        copy_elements(&gathered->cursor, gathered->buffer, count, gathered->item);
}

/* -- binding ----------------------------------------------------------------------------------------------------*/

static size_t in_lines(npy_intp bytes)
{
    return ((size_t)bytes + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE;
}

/* Take memory from what is left of it; or if there is none yet, count it. Blocks are powers of two: without a line
 * between them all buffers would use the same lines of the cache. */
static char *take(char **memory, size_t *bytes, npy_intp wanted)
{
    char *taken = *memory;
    size_t whole = in_lines(wanted) + CACHE_LINE;
    *bytes += whole;
    if (taken)
        *memory += whole;
    return taken;
}

int may_be_made(const struct program *program, npy_intp array)
{
    for (npy_intp number = 0; number < program->step_count; number++) {
        const struct step *step = &program->steps[number];
        int is_reduction = step->flags & REDUCTION;
        if (step->references[is_reduction ? 0 : step->arguments - 1] == array
            || (is_reduction && step->references[2] == array))
            return 0;
    }
    return 1;
}

/* Lay out buffers, and bind the arguments of all steps to them and to arrays; 0 if that cannot be. Without memory the
 * bytes are counted that it takes. */
static int bind(struct run *run, const struct array *arrays, char *memory, size_t *bytes)
{
    const struct program *program = run->program;
    int flat = 1;
    char *buffers[MOST_BUFFERS];
    *bytes = 0;
    for (npy_intp number = 0; number < program->buffer_count; number++)
        buffers[number] = take(&memory, bytes, program->block * program->buffer_items[number]);
    for (npy_intp number = 0; number < program->array_count; number++) {
        struct gathered *gathered = &run->gathered[number];
        const struct layout *layout = &run->layouts[number];
        flat &= layout->axes == 1;
        *gathered = (struct gathered){.item = program->array_items[number]};
        npy_intp period, elements = gathered_elements(program, &arrays[number], layout, &period);
        if (elements && may_be_made(program, number)) {
            gathered->period = period;
            gathered->source = arrays[number].source;
            gathered->cursor = first_place(&arrays[number], layout);
            gathered->block = gathered->buffer = take(&memory, bytes, elements * gathered->item);
        }
    }
    for (npy_intp number = 0; number < program->step_count; number++) {
        const struct step *step = &program->steps[number];
        struct bound_step *bound = &run->steps[number];
        *bound = (struct bound_step){.step = step, .simple = !(step->flags & REDUCTION)};
        if (step->flags & CAST_BEFORE && !flat)
            return 0;
        for (int place = 0; place < step->arguments; place++) {
            struct argument *argument = &bound->arguments[place];
            int reference = step->references[place];
            if (reference < 0) {
                argument->cursor = (struct cursor){
                    buffers[-1 - reference], program->buffer_items[-1 - reference], NPY_MAX_INTP, NULL, {0}};
                continue;
            }
            const struct layout *layout = &run->layouts[reference];
            struct gathered *gathered = &run->gathered[reference];
            /* Where an array is in several runs, or walked backwards, NumPy's groups may begin anywhere. */
            if (step->flags & POSITIONAL && (layout->axes > 1 || layout->strides[0] < 0))
                return 0;
            if (gathered->buffer) {
                argument->cursor = (struct cursor){NULL, gathered->item, NPY_MAX_INTP, NULL, {0}};
                argument->gathered = gathered;
                continue;
            }
            argument->cursor = first_place(&arrays[reference], layout);
            argument->moves = 1;
            bound->simple &= layout->axes == 1;
        }
        if (step->flags & REDUCTION) {
            const struct cursor *total = &bound->arguments[0].cursor;
            bound->item = program->array_items[step->references[0]];
            if (!total->stride && total->left > program->block)
                bound->part_memory = take(&memory, bytes, PARTS * bound->item);
        }
    }
    return 1;
}

/* -- running ----------------------------------------------------------------------------------------------------*/

static int call(const struct loop *loop, char *const *data, npy_intp count, const npy_intp *strides)
{
    return loop->function(loop->context, data, &count, strides, loop->data);
}

static char *first_of(const struct argument *argument)
{
    return argument->gathered ? argument->gathered->block : argument->cursor.pointer;
}

static int run_simple(struct bound_step *bound, npy_intp count)
{
    const struct step *step = bound->step;
    char *data[MOST_ARGUMENTS];
    npy_intp strides[MOST_ARGUMENTS];
    for (int place = 0; place < step->arguments; place++) {
        struct argument *argument = &bound->arguments[place];
        data[place] = first_of(argument);
        strides[place] = argument->cursor.stride;
        if (argument->moves)
            argument->cursor.pointer += count * argument->cursor.stride;
    }
    return call(step->loop, data, count, strides);
}

/* Call the loop for each run that all arguments have in common. */
static int run_in_runs(struct bound_step *bound, npy_intp count)
{
    const struct step *step = bound->step;
    struct cursor cursors[MOST_ARGUMENTS];
    npy_intp strides[MOST_ARGUMENTS];
    for (int place = 0; place < step->arguments; place++) {
        cursors[place] = bound->arguments[place].cursor;
        cursors[place].pointer = first_of(&bound->arguments[place]);
        strides[place] = cursors[place].stride;
    }
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
        if (bound->arguments[place].moves)
            bound->arguments[place].cursor = cursors[place];
    return 0;
}

/* Add the parts of a reduction to the total. */
static int reduce_parts(struct bound_step *bound)
{
    char *total = bound->arguments[0].cursor.pointer;
    char *data[] = {total, bound->part_memory, total};
    npy_intp strides[] = {0, bound->item, 0}, count = bound->parts;
    bound->parts = 0;
    return count ? call(bound->step->loop, data, count, strides) : 0;
}

/* Reduce many runs of a few elements across, all first elements and so on; return how many elements, or -1. */
static npy_intp reduce_across(struct bound_step *bound, struct cursor *source, npy_intp count)
{
    struct cursor *total = &bound->arguments[0].cursor;
    int outer = total->layout->axes - 2;
    npy_intp length = total->layout->lengths[outer + 1];
    if (outer < 0 || length > MOST_ACROSS || total->left != length)
        return 0;
    npy_intp runs = (source->left < count ? source->left : count) / length;
    npy_intp along = total->layout->lengths[outer] - total->index[outer];
    if (along < runs)
        runs = along;
    if (runs <= length)
        return 0;
    npy_intp step = total->layout->strides[outer];
    for (npy_intp at = 0; at < length; at++) {
        char *into = total->pointer + at * total->stride;
        char *data[] = {into, source->pointer + at * source->stride, into};
        npy_intp strides[] = {step, length * source->stride, step};
        if (call(bound->step->loop, data, runs, strides))
            return -1;
    }
    carry(total, outer, runs);
    move(source, runs * length);
    return runs * length;
}

/* Add up rows that are whole and have no gaps between them; return how many elements these are. */
static npy_intp sum_rows(struct bound_step *bound, struct cursor *source, npy_intp count)
{
    struct cursor *total = &bound->arguments[0].cursor;
    int outer = total->layout->axes - 2;
    if (!(bound->step->flags & SUM) || total->stride || outer < 0 || source->stride != bound->item)
        return 0;
    npy_intp length = total->layout->lengths[outer + 1];
    if (length > LONGEST_SUMMED_ROW || total->left != length)
        return 0;
    npy_intp rows = (source->left < count ? source->left : count) / length;
    npy_intp along = total->layout->lengths[outer] - total->index[outer];
    if (along < rows)
        rows = along;
    if (!rows)
        return 0;
    add_row_sums((const double *)source->pointer, rows, length, total->pointer, total->layout->strides[outer]);
    carry(total, outer, rows);
    move(source, rows * length);
    return rows * length;
}

static int run_reduction(struct bound_step *bound, npy_intp count)
{
    const struct step *step = bound->step;
    struct cursor *total = &bound->arguments[0].cursor;
    struct cursor source = bound->arguments[1].cursor;
    source.pointer = first_of(&bound->arguments[1]);
    while (count > 0) {
        npy_intp part = reduce_across(bound, &source, count);
        if (part < 0)
            return -1;
        if (!part)
            part = sum_rows(bound, &source, count);
        if (part) {
            count -= part;
            continue;
        }
        part = count;
        if (total->left < part)
            part = total->left;
        if (source.left < part)
            part = source.left;
        char *into = total->pointer;
        if (bound->part_memory) {
            into = bound->part_memory + bound->parts++ * bound->item;
            memcpy(into, bound->arguments[2].cursor.pointer, (size_t)bound->item);
        }
        char *data[] = {into, source.pointer, into};
        npy_intp strides[] = {total->stride, source.stride, total->stride};
        int failed = call(step->loop, data, part, strides);
        if (!failed && bound->part_memory && (bound->parts == PARTS || part == total->left))
            failed = reduce_parts(bound);
        if (failed)
            return failed;
        move(total, part);
        move(&source, part);
        count -= part;
    }
    if (bound->arguments[1].moves)
        bound->arguments[1].cursor = source;
    return 0;
}

static enum outcome run_blocks(struct run *run, int (*interrupted)(void))
{
    const struct program *program = run->program;
    int watched = run->watched, clean = 0;
    npy_intp patience = PATIENCE;
    for (npy_intp start = 0; start < program->size; start += program->block) {
        npy_intp count = program->size - start < program->block ? program->size - start : program->block;
        for (npy_intp number = 0; number < program->array_count; number++)
            if (run->gathered[number].buffer)
                gather(program, &run->gathered[number], start, count);
        for (npy_intp number = 0; number < program->step_count; number++) {
            struct bound_step *bound = &run->steps[number];
            int checked = watched && !bound->step->loop->no_floating_point_errors;
            /* Loops that NumPy does not look at may leave anything there. */
            if (checked && !clean && fetestexcept(watched))
                feclearexcept(watched);
            int failed = bound->simple                        ? run_simple(bound, count)
                         : bound->step->flags & REDUCTION ? run_reduction(bound, count)
                                                            : run_in_runs(bound, count);
            if (failed)
                return failed == LOOP_REFUSED ? REFUSED : FAILED;
            if (checked && fetestexcept(watched))
                return ERRORS;
            clean = checked;
        }
        if ((patience -= program->step_count) < 0) {
            patience = PATIENCE;
            clean = 0;
            if (interrupted())
                return FAILED;
        }
    }
    if (watched && fetestexcept(watched))
        feclearexcept(watched);
    for (npy_intp number = 0; number < program->step_count; number++)
        if (run->steps[number].parts && reduce_parts(&run->steps[number]))
            return FAILED;
    return watched && fetestexcept(watched) ? ERRORS : DONE;
}

enum outcome run_program(const struct program *program, const struct array *arrays, int watched,
                         int (*interrupted)(void))
{
    size_t steps_bytes = in_lines(program->step_count * (npy_intp)sizeof(struct bound_step));
    size_t gathered_bytes = in_lines(program->array_count * (npy_intp)sizeof(struct gathered));
    size_t layouts_bytes = in_lines(program->array_count * (npy_intp)sizeof(struct layout));
    char *memory = malloc(steps_bytes + gathered_bytes + layouts_bytes), *buffers = NULL;
    if (!memory)
        return NO_MEMORY;
    struct run run = {
        .program = program,
        .steps = (struct bound_step *)memory,
        .gathered = (struct gathered *)(memory + steps_bytes),
        .layouts = (struct layout *)(memory + steps_bytes + gathered_bytes),
        .watched = watched,
    };
    enum outcome outcome = DONE;
    size_t bytes;
    for (npy_intp number = 0; number < program->array_count && outcome == DONE; number++)
        if (arrays[number].source)
            run.layouts[number] = (struct layout){1, {program->size}, {program->array_items[number]}};
        else if (!find_layout(program, &arrays[number], &run.layouts[number]))
            outcome = REFUSED;
    if (outcome == DONE && !bind(&run, arrays, NULL, &bytes))
        outcome = REFUSED;
    if (outcome == DONE) {
        buffers = aligned_alloc(CACHE_LINE, bytes + CACHE_LINE);
        if (!buffers)
            outcome = NO_MEMORY;
    }
    if (outcome == DONE) {
        bind(&run, arrays, buffers, &bytes);
        for (npy_intp number = 0; number < program->array_count; number++)
            if (run.gathered[number].period)
                lay_out(&run.gathered[number], program->block + run.gathered[number].period);
        outcome = run_blocks(&run, interrupted);
    }
    free(buffers);
    free(memory);
    return outcome;
}
