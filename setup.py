"""The compiled half of streamlog.codec. Without a compiler everything installs and works without it.

STREAMLOG_CODEC_FLAGS: further flags for compiler and linker, separated by blanks.
"""

import os
import sys
from pathlib import Path

from setuptools import Extension, setup

FOLDER = Path("streamlog/codec/native")
FLAGS = os.environ.get("STREAMLOG_CODEC_FLAGS", "").split()
WARNINGS = [] if sys.platform == "win32" else ["-Wall", "-Wextra", "-Wno-cast-function-type"]

setup(
    ext_modules=[
        Extension(
            "streamlog.codec._native",
            sources=sorted(path.as_posix() for path in FOLDER.glob("*.c")),
            depends=sorted(path.as_posix() for path in FOLDER.glob("*.h")),
            define_macros=[("Py_LIMITED_API", "0x030B0000")],
            extra_compile_args=[*WARNINGS, *FLAGS],
            extra_link_args=FLAGS,
            py_limited_api=True,
            optional=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
