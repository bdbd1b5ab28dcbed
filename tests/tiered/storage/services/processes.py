"""The services as processes on loopback, each fetched once by the package manager of its world."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.spark.jars import hadoop_jars
from streamlog.demo.go_tools import go_tool, locked, tools_folder
from streamlog.errors import Unavailable

AZURITE = "3.37.0"
FAKE_GCS = "v1.56.1"
START_S_MAX = 180.0
MINI_CLUSTER = "org.apache.hadoop.mapreduce.MiniHadoopClusterManager"
NAME_NODE = re.compile(
    r"<name>dfs\.namenode\.http-address</name>(?:<final>false</final>)?<value>([^<]+)</value>"
)


def azurite() -> Path:
    """Azurite's blob service. Errors: Unavailable, without npm or its registry."""
    folder = tools_folder() / f"azurite-{AZURITE}"
    if not folder.is_dir():
        with locked(tools_folder() / "azurite.lock"):
            if not folder.is_dir():
                _fetch_azurite(folder)
    return folder / "node_modules" / ".bin" / "azurite-blob"


def _fetch_azurite(folder: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise Unavailable("npm is not on the PATH, and fetches Azurite: apt install npm")
    with tempfile.TemporaryDirectory(dir=folder.parent) as place:
        done = subprocess.run(
            [npm, "install", "--no-audit", "--no-fund", "--prefix", place, f"azurite@{AZURITE}"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise Unavailable(f"npm could not fetch Azurite: {done.stderr[-600:]}")
        os.rename(place, folder)
        Path(place).mkdir()


@contextmanager
def running_hdfs(folder: Path) -> Iterator[str]:
    """HOST:PORT of the name node's HTTP interface, with one data node beside it."""
    config = folder / "hadoop.xml"
    class_path = os.pathsep.join(map(str, hadoop_jars().paths))
    command = ["java", "-Xmx512m", "-XX:+UseSerialGC", "-cp", class_path, MINI_CLUSTER,
               "-nomr", "-format", "-datanodes", "1", "-nnport", "0", "-nnhttpport", "0",
               "-writeConfig", str(config)]  # fmt: skip

    def address() -> str | None:
        found = NAME_NODE.search(config.read_text("utf-8")) if config.exists() else None
        return found[1] if found else None

    with _process(command, folder) as process:
        _until(lambda: address() is not None, process, folder)
        found = address()
        assert found is not None
        yield found.replace("localhost", "127.0.0.1")


@contextmanager
def running_azurite(folder: Path) -> Iterator[str]:
    """HOST:PORT of the blob service."""
    port = _free_port()
    command = [str(azurite()), "--silent", "--skipApiVersionCheck", "--location", str(folder),
               "--blobHost", "127.0.0.1", "--blobPort", str(port)]  # fmt: skip
    with _process(command, folder) as process:
        _until(lambda: _answers(f"http://127.0.0.1:{port}/"), process, folder)
        yield f"127.0.0.1:{port}"


@contextmanager
def running_gcs(folder: Path) -> Iterator[str]:
    """HOST:PORT of the JSON interface."""
    port = _free_port()
    address = f"127.0.0.1:{port}"
    program = go_tool("github.com/fsouza/fake-gcs-server", FAKE_GCS)
    command = [str(program), "-scheme", "http", "-host", "127.0.0.1", "-port", str(port),
               "-backend", "filesystem", "-filesystem-root", str(folder / "objects"),
               "-external-url", f"http://{address}", "-public-host", address]  # fmt: skip
    with _process(command, folder) as process:
        _until(lambda: _answers(f"http://{address}/storage/v1/b?project=p"), process, folder)
        yield address


@contextmanager
def _process(command: Sequence[str], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    with (folder / "service.log").open("wb") as output:
        process = subprocess.Popen(command, cwd=folder, stdout=output, stderr=subprocess.STDOUT)
        try:
            yield process
        finally:
            process.kill()
            process.wait(timeout=30)


def _until(is_so: Callable[[], bool], process: subprocess.Popen[bytes], folder: Path) -> None:
    deadline = time.monotonic() + START_S_MAX
    while not is_so():
        said = (folder / "service.log").read_text("utf-8", "replace")[-2000:]
        assert process.poll() is None, f"the service has ended: {said}"
        assert time.monotonic() < deadline, f"the service is not ready: {said}"
        time.sleep(0.2)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port
