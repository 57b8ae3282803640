# %% [markdown]
# # 10 GB in 1 GiB
#
# An array of 10 GB is computed twice: first its mean, then how far each value is from it. Keeping the array in between takes
# 10 GB of memory. Here all processes together get 1 GiB.
#
# The environment variable `GALLERY_GIGABYTES` makes the array smaller, for machines that have no 10 GB of disk to
# spare; memory shrinks with it, down to 0.5 GiB.

# %%
import os
import subprocess
import sys
import time

import dask.array as da
import numpy as np

import dask_mars

GIGABYTES = float(os.environ.get("GALLERY_GIGABYTES", 10))
LIMIT = int(max(0.5, min(1, GIGABYTES / 10)) * 2**30)
CHUNKS = round(GIGABYTES * 1e9 / (1_000_000 * 8))


def measure(block_info):
    """Stand for an instrument: what it says cannot be asked for again."""
    number = block_info[None]["chunk-location"][0]
    return np.random.default_rng(number).normal(20, 3, (1, 1_000_000))


x = da.map_blocks(measure, chunks=((1,) * CHUNKS, (1_000_000,)), dtype="f8")
spread = da.sqrt(((x - x.mean()) ** 2).mean())
print(f"{x.nbytes / 1e9:.1f} GB in {CHUNKS} chunks, within {LIMIT / 2**30:.1f} GiB")

# %%
began = time.perf_counter()
with dask_mars.Runtime(num_workers=2, memory_limit=LIMIT) as runtime:
    print(f"standard deviation {spread.compute(scheduler=runtime.get):.4f}")
    memory = runtime.memory()
seconds = time.perf_counter() - began
print(f"{seconds:.1f} s; at most {memory.peak_bytes / 2**30:.2f} GiB of {LIMIT / 2**30:.2f} GiB in use")
print(f"{memory.spilled_bytes / 1e9:.1f} GB went to disk")
assert memory.peak_bytes < 1.05 * LIMIT

# %% [markdown]
# What does not fit goes to disk and comes back for the second pass. No setting says so: the limit does.
#
# ## Beside threads
#
# Threads have no limit. With 10 GB they would take 10 GB, if the machine has them. So they get a fifth of the array
# here, in a process of its own whose memory is measured.

# %%
PROGRAM = f"""
import resource, time
import dask.array as da, numpy as np

def measure(block_info):
    number = block_info[None]["chunk-location"][0]
    return np.random.default_rng(number).normal(20, 3, (1, 1_000_000))

x = da.map_blocks(measure, chunks=((1,) * {CHUNKS // 5}, (1_000_000,)), dtype="f8")
began = time.perf_counter()
da.sqrt(((x - x.mean()) ** 2).mean()).compute(scheduler="threads")
seconds = time.perf_counter() - began
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if {sys.platform == "darwin"} else 1024)
print(f"threads: {{x.nbytes / 1e9:.1f}} GB in {{seconds:.1f}} s, at most {{peak / 2**30:.2f}} GiB in use")
"""
print(subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True).stdout)

# %% [markdown]
# Where memory is enough, threads are faster: they write nothing to disk. Where it is not, the system ends them.
