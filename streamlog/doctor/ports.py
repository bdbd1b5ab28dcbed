"""Checks that the node can listen on an address; else names the process that does."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

from streamlog.doctor.findings import CheckOutcome, CheckResult

_PROC = Path("/proc")
_LISTENING = "0A"


def check_port(name: str, address: str) -> CheckResult:
    """A taken port is only a warning, because the node itself may have it. Blocking."""
    host, colon, port = address.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit()) or not host or int(port) > 65535:
        return _no_address(name, address)
    try:
        family, kind, proto, _, where = socket.getaddrinfo(
            host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, proto) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(where)
            probe.listen(1)
    except UnicodeError:
        return _no_address(name, address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return CheckResult(
                name,
                CheckOutcome.WARN,
                f"{address} is in use by {_holder(int(port))}",
                "if that is not the node that this configuration starts: stop it, or choose "
                "another port",
            )
        return CheckResult(
            name,
            CheckOutcome.FAIL,
            f"{address}: {error.strerror or error}",
            "choose an address of this machine, and a port that this user may open",
        )
    return CheckResult(name, CheckOutcome.PASS, f"{address} is free")


def _no_address(name: str, address: str) -> CheckResult:
    return CheckResult(
        name,
        CheckOutcome.FAIL,
        f"{address[:80]!r} is no address",
        "give HOST:PORT, such as 127.0.0.1:9644",
    )


def _holder(port: int) -> str:
    """`process 12 (command line)`, if /proc can be read."""
    inodes = _listening(port)
    for folder in _PROC.glob("[0-9]*"):
        try:
            if any(_target(folder / "fd" / name) in inodes for name in os.listdir(folder / "fd")):
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ")
                text = command.decode(errors="replace").strip()
                return f"process {folder.name} ({text[:120]})"
        except OSError:
            # The process ended, or is another user's.
            continue
    return "a process that this user may not see"


def _target(link: Path) -> str:
    """The link's target; empty if the descriptor was closed meanwhile."""
    try:
        return os.readlink(link)
    except FileNotFoundError:
        return ""


def _listening(port: int) -> set[str]:
    inodes = set()
    for table in ("net/tcp", "net/tcp6"):
        try:
            lines = (_PROC / table).read_text("ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(f"socket:[{fields[9]}]")
    return inodes
