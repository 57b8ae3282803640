/* Random programs over random arrays, several threads at once, compared with a walk element by element.
 *
 * Built with the sanitizers by tests and by `make stress`. All values are small whole numbers, so that sums come out
 * the same in any order. */

#include "../dask_mars/expressions/_blocks.h"

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define THREADS 3
#define MOST_ARRAYS 12
#define MOST_STEPS 8
#define MOST_AXES 5

static void check(int condition, const char *what)
{
    if (!condition) {
        fprintf(stderr, "failed: %s\n", what);
        abort();
    }
}

static uint64_t next(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static int below(uint64_t *state, int limit)
{
    return (int)(next(state) >> 33) % limit;
}

/* -- loops ------------------------------------------------------------------------------------------------------*/

static int halve(PyArrayMethod_Context *Py_UNUSED(context), char *const *data, npy_intp const *dimensions,
                 npy_intp const *strides, NpyAuxData *Py_UNUSED(auxiliary))
{
    char *source = data[0], *target = data[1];
    for (npy_intp at = 0; at < dimensions[0]; at++, source += strides[0], target += strides[1])
        *(double *)target = (double)((int64_t) * (double *)source / 2);
    return 0;
}

static const struct loop halving = {halve, NULL, NULL, 0, 1};

/* Loops of the extension, and what they compute. Products are only summed: others would be too large to be exact. */
static const struct {
    const char *name;
    int arguments;
} operations[] = {{"halve", 2}, {"add", 3}, {"subtract", 3}, {"negative", 2}, {"absolute", 2}, {"multiply", 3}, {"square", 2}};
enum { HALVE, ADD, SUBTRACT, NEGATIVE, ABSOLUTE, MULTIPLY, SQUARE, OPERATIONS };

static const struct loop *loop_of(int operation)
{
    return operation == HALVE ? &halving : arithmetic_loop(operations[operation].name, 'd');
}

static double result_of(int operation, double x, double y)
{
    switch (operation) {
    case HALVE:
        return (double)((int64_t)x / 2);
    case ADD:
        return x + y;
    case SUBTRACT:
        return x - y;
    case NEGATIVE:
        return -x;
    case ABSOLUTE:
        return x < 0 ? -x : x + 0.0;
    case MULTIPLY:
        return x * y;
    default:
        return x * x;
    }
}

/* -- programs ---------------------------------------------------------------------------------------------------*/

struct given {
    char *memory;
    struct array array;
    npy_intp lengths[MOST_AXES], strides[MOST_AXES];
};

struct whole {
    struct program program;
    struct step steps[MOST_STEPS];
    int operations[MOST_STEPS];
    npy_intp items[MOST_ARRAYS], buffers[MOST_STEPS];
    struct given given[MOST_ARRAYS];
    int inputs;
    /* Whether the first input's elements lie in the order in which a source would make them. */
    int can_be_made;
};

/* Make an array of a shape, broadcast, cut and turned at random if it is an input. */
static void make_array(uint64_t *state, const struct program *program, struct given *given, int is_input, int reduced)
{
    int own = is_input ? below(state, program->dimensions + 1) : program->dimensions;
    npy_intp bytes = sizeof(double), offset = 0;
    given->array.dimensions = own;
    for (int axis = own - 1; axis >= 0; axis--) {
        int at = program->dimensions - own + axis;
        npy_intp length = program->shape[program->reversed ? program->dimensions - 1 - at : at];
        if ((is_input && !below(state, 4)) || reduced >> axis & 1)
            length = 1;
        npy_intp step = is_input && !below(state, 3) ? 1 + below(state, 3) : 1;
        given->lengths[axis] = length;
        given->strides[axis] = bytes * step;
        bytes *= length * step;
        if (is_input && !below(state, 5)) {
            offset += given->strides[axis] * (length - 1);
            given->strides[axis] = -given->strides[axis];
        }
    }
    given->memory = malloc((size_t)bytes);
    check(given->memory != NULL, "memory");
    for (npy_intp at = 0; at < bytes / (npy_intp)sizeof(double); at++)
        ((double *)given->memory)[at] = is_input ? below(state, 9) : 0;
    given->array.data = given->memory + offset;
    given->array.lengths = given->lengths;
    given->array.strides = given->strides;
}

static double *element(const struct program *program, const struct array *array, const npy_intp *index)
{
    char *pointer = array->data;
    for (int axis = 0; axis < array->dimensions; axis++) {
        int at = program->dimensions - array->dimensions + axis;
        npy_intp place = index[program->reversed ? program->dimensions - 1 - at : at];
        pointer += array->lengths[axis] == 1 ? 0 : place * array->strides[axis];
    }
    return (double *)pointer;
}

static void make(uint64_t *state, struct whole *whole)
{
    struct program *program = &whole->program;
    *program = (struct program){.steps = whole->steps, .array_items = whole->items, .buffer_items = whole->buffers};
    program->dimensions = 1 + below(state, MOST_AXES);
    program->reversed = below(state, 2);
    program->block = GRID << below(state, 3);
    program->size = 1;
    for (int axis = 0; axis < program->dimensions; axis++) {
        int most = program->dimensions == 1 ? 3000 : program->dimensions == 2 ? 150 : 12;
        program->size *= program->shape[axis] = 1 + below(state, most);
    }
    whole->inputs = 1 + below(state, 4);
    for (int number = 0; number < whole->inputs; number++)
        if (!number && !program->reversed && below(state, 2)) {
            make_array(state, program, &whole->given[0], 0, 0);
            for (npy_intp at = 0; at < program->size; at++)
                ((double *)whole->given[0].memory)[at] = below(state, 9);
            whole->can_be_made = 1;
        }
        else
            make_array(state, program, &whole->given[number], 1, 0);
    program->array_count = whole->inputs;
    int steps = 2 + below(state, MOST_STEPS - 3);
    for (int number = 0; number < steps; number++) {
        struct step *step = &whole->steps[number];
        int operation = below(state, number == steps - 1 ? OPERATIONS : MULTIPLY), result;
        if (below(state, 4)) {
            result = -1 - (int)program->buffer_count++;
        }
        else {
            make_array(state, program, &whole->given[program->array_count], 0, 0);
            result = (int)program->array_count++;
        }
        whole->operations[number] = operation;
        *step = (struct step){.loop = loop_of(operation), .arguments = operations[operation].arguments};
        for (int place = 0; place < step->arguments - 1; place++)
            step->references[place] = number && below(state, 2)
                                          ? whole->steps[number - 1].references[whole->steps[number - 1].arguments - 1]
                                          : below(state, whole->inputs);
        step->references[step->arguments - 1] = result;
    }
    if (below(state, 2)) {
        struct step *last = &whole->steps[steps - 1];
        int source = last->references[last->arguments - 1];
        int every = (1 << program->dimensions) - 1, reduced = below(state, 2) ? every : 1 + below(state, every + 1);
        int sum = (below(state, 2) ? SUM : 0) | (source < 0 && below(state, 4) ? OF_RESULTS : 0)
                  | (below(state, 2) ? PAIRWISE : 0);
        make_array(state, program, &whole->given[program->array_count], 0, reduced);
        make_array(state, program, &whole->given[program->array_count + 1], 0, every);
        whole->steps[steps++] = (struct step){
            loop_of(ADD), 3, REDUCTION | sum, {(int)program->array_count, source, (int)program->array_count + 1}};
        program->array_count += 2;
    }
    program->step_count = steps;
    for (int number = 0; number < MOST_ARRAYS; number++)
        whole->items[number] = sizeof(double);
    for (int number = 0; number < MOST_STEPS; number++)
        whole->buffers[number] = sizeof(double);
    check(program->array_count <= MOST_ARRAYS, "arrays");
}

/* Compute element by element, each array that is written into one of the others. */
static void compute(const struct whole *whole, struct array *arrays)
{
    const struct program *program = &whole->program;
    for (npy_intp at = 0; at < program->size; at++) {
        npy_intp index[MOST_AXES], rest = at;
        double buffers[MOST_STEPS];
        for (int axis = program->dimensions - 1; axis >= 0; axis--) {
            index[axis] = rest % program->shape[axis];
            rest /= program->shape[axis];
        }
        for (npy_intp number = 0; number < program->step_count; number++) {
            const struct step *step = &program->steps[number];
            double *values[3];
            for (int place = 0; place < step->arguments; place++) {
                int reference = step->references[place];
                values[place] = reference < 0 ? &buffers[-1 - reference] : element(program, &arrays[reference], index);
            }
            if (step->flags & REDUCTION)
                *values[0] += *values[1];
            else
                *values[step->arguments - 1] = result_of(whole->operations[number], *values[0], *values[1]);
        }
    }
}

static int not_interrupted(void)
{
    return 0;
}

struct call {
    pthread_t thread;
    const struct whole *whole;
    int from_source;
    struct array arrays[MOST_ARRAYS];
    char *memory[MOST_ARRAYS];
    size_t bytes[MOST_ARRAYS];
};

/* Give a call arrays of its own for what it writes; it shares the inputs. */
static void prepare(struct call *call, const struct whole *whole)
{
    *call = (struct call){.whole = whole};
    for (int number = 0; number < whole->program.array_count; number++) {
        const struct given *given = &whole->given[number];
        call->arrays[number] = given->array;
        if (number < whole->inputs)
            continue;
        size_t bytes = sizeof(double);
        for (int axis = 0; axis < given->array.dimensions; axis++)
            bytes *= (size_t)given->lengths[axis];
        call->bytes[number] = bytes;
        call->memory[number] = calloc(1, bytes);
        check(call->memory[number] != NULL, "memory");
        call->arrays[number].data = call->memory[number];
    }
}

/* Makes what is in memory already. */
struct copier {
    struct source source;
    const double *at;
};

static void copy(struct source *source, void *out, size_t count)
{
    struct copier *copier = (struct copier *)source;
    check(count <= source->left, "elements of a source");
    memcpy(out, copier->at, count * sizeof(double));
    copier->at += count;
    source->left -= count;
}

static void *run_call(void *given)
{
    struct call *call = given;
    const struct program *program = &call->whole->program;
    struct copier copier = {{sizeof(double), 1, (size_t)program->size, copy}, (double *)call->arrays[0].data};
    if (call->from_source) {
        check(may_be_made(program, 0), "an input that is written");
        call->arrays[0] = (struct array){.source = &copier.source};
    }
    check(run_program(program, call->arrays, 0, not_interrupted) == DONE, "outcome");
    return NULL;
}

int main(int count, char **arguments)
{
    long rounds = count > 1 ? atol(arguments[1]) : 1000;
    uint64_t state = 88172645463325252u;
    for (long round = 0; round < rounds; round++) {
        struct whole whole = {0};
        struct call calls[THREADS + 1];
        make(&state, &whole);
        for (int number = 0; number <= THREADS; number++) {
            prepare(&calls[number], &whole);
            calls[number].from_source = whole.can_be_made && number & 1;
        }
        for (int number = 0; number < THREADS; number++)
            check(!pthread_create(&calls[number].thread, NULL, run_call, &calls[number]), "thread");
        compute(&whole, calls[THREADS].arrays);
        for (int number = 0; number < THREADS; number++) {
            pthread_join(calls[number].thread, NULL);
            for (int array = whole.inputs; array < whole.program.array_count; array++)
                check(!memcmp(calls[number].memory[array], calls[THREADS].memory[array], calls[number].bytes[array]),
                      "values");
        }
        for (int array = 0; array < whole.program.array_count; array++) {
            for (int number = 0; number <= THREADS; number++)
                free(calls[number].memory[array]);
            free(whole.given[array].memory);
        }
    }
    return 0;
}
