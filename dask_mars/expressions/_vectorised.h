/* Loops that are compiled several times where the loader can choose by processor: they are short, and wider registers
 * make them two to four times as fast. Sanitizers start too late for that. */

#ifndef DASK_MARS_VECTORISED_H
#define DASK_MARS_VECTORISED_H

#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 12 && defined(__x86_64__) && defined(__GLIBC__) \
    && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define VECTORISED __attribute__((target_clones("default", "avx2", "arch=x86-64-v4")))
#else
#define VECTORISED
#endif

#endif
