/* The memory of Python's own objects, as a part of a worker's quota.
 *
 * A large object (a bytearray, bytes, a long list) is one block, and small ones share arenas of a MiB. Both are asked
 * for before they are taken, like an array's memory. An arena cannot be refused to those that need it: they would take
 * small blocks elsewhere, or be left in the middle of something. The task is interrupted instead.
 */

#ifndef DASK_MARS_OBJECTS_H
#define DASK_MARS_OBJECTS_H

#include "_quota.h"

/* Return whether objects can have quotas: not with an unusual allocator of Python's, whose blocks are unknown, nor on a
 * build without a GIL, whose allocator has no hooks. */
int objects_can_be_limited(void);

/* Have all objects of this process ask a quota, or none, from now on; a signal says that an arena was refused.
 * Return 0 where they cannot ask. */
int objects_limit(struct quota *quota, int signal_number);

#endif
