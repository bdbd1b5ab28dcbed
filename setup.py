"""The compiled half of streamlog.codec. Without a C compiler everything installs and works, too.

CFLAGS and LDFLAGS are added to the compiler's.
"""

import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup

FOLDER = Path("streamlog/codec/native")
WARNINGS = [] if sys.platform == "win32" else ["-Wall", "-Wextra"]
IS_STABLE = not sysconfig.get_config_var("Py_GIL_DISABLED")
"""One binary for every Python from 3.11 on; free-threaded ones have no stable ABI."""

setup(
    ext_modules=[
        Extension(
            "streamlog.codec._native",
            sources=sorted(path.as_posix() for path in FOLDER.glob("*.c")),
            depends=sorted(path.as_posix() for path in FOLDER.glob("*.h")),
            define_macros=[("Py_LIMITED_API", "0x030B0000")] if IS_STABLE else [],
            extra_compile_args=WARNINGS,
            py_limited_api=IS_STABLE,
            optional=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if IS_STABLE else {},
)
