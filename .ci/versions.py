"""Prints what the checks ran with: platform, Python, and the packages that decide behaviour."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version

PACKAGES = [
    "grpcio",
    "protobuf",
    "rocksdict",
    "zstandard",
    "cramjam",
    "aiokafka",
    "awscrt",
    "boto3",
    "aiohttp",
    "prometheus-client",
    "click",
    "pytest",
    "pytest-xdist",
    "hypothesis",
    "ruff",
    "mypy",
    "import-linter",
    "buf-bin",
    "grpcio-tools",
    "setuptools",
]


def main() -> None:
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    print(f"commit {commit.stdout.strip() or 'none'}")
    print(f"{platform.platform()}, {os.cpu_count()} CPUs")
    print(f"Python {platform.python_version()}")
    for package in PACKAGES:
        try:
            print(f"{package} {version(package)}")
        except PackageNotFoundError:
            print(f"{package} is not installed")


main()
