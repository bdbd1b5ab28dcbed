"""Sample logs from a seed: the same seed writes the same bytes, on any machine.

Five systems, each with its own shape of line, lengths from 40 bytes to a stack trace's; among them
empty lines, trailing blanks, tabs, text beyond ASCII and a few lines that end in CR.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

LINES_DEFAULT = 2000
SEED_DEFAULT = 1

_BEGIN = datetime(2026, 1, 5, 6, 0, 0, tzinfo=UTC)
_USERS = ("root", "admin", "oracle", "guest", "deploy", "jürgen", "李雷", "git", "ubuntu")
_PATHS = (
    "/",
    "/index.html",
    "/api/v1/orders",
    "/api/v1/users/{}",
    "/static/app.{}.js",
    "/search?q={}&page=2",
)
_AGENTS = (
    "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Safari/537.36",
    "curl/8.5.0",
    "kube-probe/1.31",
    "Go-http-client/2.0",
)
_CLASSES = (
    "OrderService",
    "PaymentGateway",
    "SessionCache",
    "RetryPolicy",
    "LedgerWriter",
    "IndexBuilder",
)


def _address(rng: Random) -> str:
    return ".".join(str(rng.randrange(1, 255)) for _ in range(4))


def _web(rng: Random, time: datetime) -> str:
    path = rng.choice(_PATHS).format(rng.randrange(100_000))
    verb = rng.choice(("GET", "GET", "GET", "POST", "PUT"))
    status = rng.choice((200, 200, 200, 204, 301, 304, 404, 500, 503))
    return (
        f"{_address(rng)} - - [{time:%d/%b/%Y:%H:%M:%S} +0000] "
        f'"{verb} {path} HTTP/1.1" {status} {rng.randrange(200, 90_000)} '
        f'"-" "{rng.choice(_AGENTS)}"'
    )


def _ssh(rng: Random, time: datetime) -> str:
    head = f"{time:%b %d %H:%M:%S} edge-{rng.randrange(4)} sshd[{rng.randrange(900, 32_000)}]: "
    user, peer, port = rng.choice(_USERS), _address(rng), rng.randrange(1024, 65_535)
    return head + rng.choice(
        (
            f"Failed password for invalid user {user} from {peer} port {port} ssh2",
            f"Accepted publickey for {user} from {peer} port {port} ssh2",
            f"Connection closed by {peer} port {port} [preauth]",
            f"pam_unix(sshd:auth): authentication failure; logname= uid=0 euid=0 rhost={peer} ",
        )
    )


def _service(rng: Random, time: datetime) -> str:
    name = rng.choice(_CLASSES)
    head = f"{time:%Y-%m-%d %H:%M:%S},{rng.randrange(1000):03d} "
    if rng.random() < 0.03:
        frames = rng.randrange(4, 20)
        trace = "".join(
            f"\tat com.example.{rng.choice(_CLASSES)}.run({name}.java:{rng.randrange(40, 900)})"
            for _ in range(frames)
        )
        return f"{head}ERROR [worker-{rng.randrange(16)}] {name} - java.io.IOException:{trace}"
    request, took = rng.getrandbits(64), rng.randrange(1, 4000)
    return f"{head}INFO [worker-{rng.randrange(16)}] {name} - request {request:016x} took {took} ms"


def _storage(rng: Random, time: datetime) -> str:
    block = f"blk_{rng.getrandbits(62)}"
    node = f"10.250.{rng.randrange(16)}.{rng.randrange(255)}"
    head = f"{time:%y%m%d %H%M%S} {rng.randrange(10, 4000)} INFO dfs."
    return head + rng.choice(
        (
            f"DataNode$PacketResponder: Received block {block} of size 67108864 from /{node}",
            f"DataNode$DataXceiver: Receiving block {block} src: /{node}:50010 dest: /{node}:50010",
            f"FSNamesystem: BLOCK* NameSystem.addStoredBlock: {block} is added to {node}:50010",
        )
    )


def _kernel(rng: Random, time: datetime) -> str:
    if rng.random() < 0.02:
        return ""
    end = "\r" if rng.random() < 0.05 else ""
    fault = f"EXT4-fs (sda{rng.randrange(1, 9)}): error count since last fsck: {rng.randrange(99)}"
    link = f"eth{rng.randrange(4)}: link up, {rng.choice((100, 1000, 10_000))} Mbps, full-duplex"
    uptime_s = rng.uniform(0, 9e5)
    return f"{time:%b %d %H:%M:%S} host kernel: [{uptime_s:12.6f}] {rng.choice((fault, link))}{end}"


SYSTEMS: dict[str, Callable[[Random, datetime], str]] = {
    "kernel": _kernel,
    "service": _service,
    "ssh": _ssh,
    "storage": _storage,
    "web": _web,
}


def generate(system: str, *, seed: int = SEED_DEFAULT, lines: int = LINES_DEFAULT) -> bytes:
    """`lines` lines of one system, each ended by LF."""
    rng = Random(f"{seed}/{system}")
    time = _BEGIN
    made: list[str] = []
    for _ in range(lines):
        time += timedelta(milliseconds=rng.randrange(2000))
        made.append(SYSTEMS[system](rng, time))
    return "\n".join((*made, "")).encode()


def write_samples(
    folder: Path, *, seed: int = SEED_DEFAULT, lines: int = LINES_DEFAULT
) -> list[Path]:
    """Writes one file `SYSTEM.log` for each system; the files made."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for system in SYSTEMS:
        path = folder / f"{system}.log"
        path.write_bytes(generate(system, seed=seed, lines=lines))
        paths.append(path)
    return paths
