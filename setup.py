"""Builds the C extensions, if it can; the metadata is in pyproject.toml."""

import compileall
import os
import subprocess
import sys
import sysconfig

import numpy
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

#: What is lost without each extension.
WITHOUT = {
    "dask_mars.store._arena": "results are copied into shared memory instead of being made there",
    "dask_mars.expressions._native": "elementwise chains are evaluated by more calls of NumPy's functions",
    "dask_mars.expressions._pcg64": "random numbers take as long as NumPy takes for them",
}
#: Whether mypyc compiles the state machine: "1" or "0"; without, all but editable installations do, where compiled
#: modules would hide changes. It would switch on the lock of a Python without one.
COMPILES = os.environ.get("DASK_MARS_COMPILE", "") if not sysconfig.get_config_var("Py_GIL_DISABLED") else "0"
#: Time limit of mypyc and the compiler, in seconds: they take 15 s.
COMPILE_TIMEOUT_S = 300


class BuildExtensions(build_ext):
    """Says what it means when there is no compiler, and goes on."""

    def run(self) -> None:
        """Build the extensions; in place, compile the modules as well, as an installation of a wheel does."""
        super().run()
        in_place = self.inplace or self.editable_mode
        if COMPILES == "1" or (COMPILES != "0" and not in_place):
            self.compile_scheduler("." if in_place else self.build_lib)
        # With PYTHONDONTWRITEBYTECODE, as many containers set it, each process would compile them again: 0.4 s.
        if in_place:
            compileall.compile_dir("dask_mars", quiet=1)
            compileall.compile_file("_dask_mars_entry.py", quiet=1)

    def compile_scheduler(self, into: str) -> None:
        """Compile the state machine in a process of its own, or say why not."""
        command = [sys.executable, "compile_scheduler.py", into]
        try:
            subprocess.run(command, check=True, timeout=COMPILE_TIMEOUT_S)
        except (OSError, subprocess.SubprocessError) as error:
            print(
                f"dask_mars: the state machine could not be compiled ({error}). Everything works without, but a "
                "chunk costs the engine 5 to 20 us more.",
                file=sys.stderr,
            )

    def build_extension(self, extension: Extension) -> None:
        """Build the extension, or say why not and what is lost."""
        try:
            super().build_extension(extension)
        except Exception as error:
            print(
                f"dask_mars: {extension.name} could not be built ({error}). Everything works without it, but "
                f"{WITHOUT[extension.name]}.",
                file=sys.stderr,
            )
            raise


setup(
    cmdclass={"build_ext": BuildExtensions},
    # Build front ends install it where the build is isolated.
    setup_requires=["mypy>=1.18; python_version < '3.15'"] if COMPILES != "0" else [],
    ext_modules=[
        Extension(
            "dask_mars.store._arena",
            [f"dask_mars/store/{name}.c" for name in ("_arena", "_heap", "_objects", "_quota")],
            depends=[f"dask_mars/store/{name}.h" for name in ("_heap", "_objects", "_quota")],
            include_dirs=[numpy.get_include()],
            extra_compile_args=["-std=c11", "-pthread", "-fvisibility=hidden"],
            extra_link_args=["-pthread"],
            optional=True,
        ),
        Extension(
            "dask_mars.expressions._pcg64",
            ["dask_mars/expressions/_pcg64.c", "dask_mars/expressions/_streams.c"],
            depends=[f"dask_mars/expressions/{name}.h" for name in ("_source", "_streams", "_vectorised")],
            include_dirs=[numpy.get_include()],
            # Products and sums are rounded one after the other, as NumPy rounds them.
            extra_compile_args=["-std=c11", "-O3", "-ffp-contract=off", "-fvisibility=hidden"],
            optional=True,
        ),
        Extension(
            "dask_mars.expressions._native",
            [
                f"dask_mars/expressions/{name}.c"
                for name in ("_native", "_blocks", "_histogram", "_loops", "_moments", "_sums")
            ],
            depends=[
                f"dask_mars/expressions/{name}.h"
                for name in ("_blocks", "_histogram", "_loops", "_moments", "_source", "_sums", "_vectorised")
            ],
            include_dirs=[numpy.get_include()],
            # Casts are vectorised from -O3 on, comparisons of real numbers if they need not trap.
            extra_compile_args=[
                "-std=c11",
                "-O3",
                "-ffp-contract=off",
                "-fno-trapping-math",
                "-fvisibility=hidden",
            ],
            libraries=["m"],
            optional=True,
        ),
    ],
)
