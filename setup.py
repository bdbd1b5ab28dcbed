"""What is compiled: the codec, and for an event loop a thread that writes files, and reads of what
the page cache has.

Without a C compiler everything installs and works, too.

CFLAGS and LDFLAGS are added to the compiler's.
"""

import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup

WARNINGS = [] if sys.platform == "win32" else ["-Wall", "-Wextra"]
IS_STABLE = not sysconfig.get_config_var("Py_GIL_DISABLED")
"""One binary for every Python from 3.11 on; free-threaded ones have no stable ABI."""


def _extension(package: str) -> Extension:
    folder = Path(*package.split("."), "native")
    return Extension(
        f"{package}._native",
        sources=sorted(path.as_posix() for path in folder.glob("*.c")),
        depends=sorted(path.as_posix() for path in folder.glob("*.h")),
        define_macros=[("Py_LIMITED_API", "0x030B0000")] if IS_STABLE else [],
        extra_compile_args=WARNINGS,
        py_limited_api=IS_STABLE,
        optional=True,
    )


setup(
    ext_modules=[_extension("streamlog.codec")]
    + ([_extension("streamlog.runtime")] if sys.platform == "linux" else []),
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if IS_STABLE else {},
)
