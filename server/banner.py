"""What a node says when it is up: where it listens, where the data is, and what to type next."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

WAL_TEXTS = {
    "disk": "acknowledged after a sync to this disk; losing the disk loses what was acknowledged "
    "and not yet uploaded (seconds)",
    "object": "acknowledged after the upload and commit; losing this machine loses nothing",
}


@dataclass(frozen=True, slots=True)
class Banner:
    """`grpc` and `http` are HOST:PORT."""

    version: str
    mode: str
    cluster_id: str
    node_id: int
    grpc: str
    http: str
    store: str
    meta: str
    wal: str
    wal_dir: str
    insecure: bool
    pid: int

    def as_json(self) -> str:
        return json.dumps({**asdict(self), "lost_disk": WAL_TEXTS.get(self.wal, "")})

    def as_text(self, command: str = "streamlog") -> str:
        """`command` is how our name is typed here."""
        where = f" in {self.wal_dir}" if self.wal_dir else ""
        server = "" if self.grpc == "127.0.0.1:9644" else f" --server {self.grpc}"
        lines = [
            f"streamlog {self.version} ({self.mode}), node {self.node_id}, "
            f"cluster {self.cluster_id}, process {self.pid}",
            f"  gRPC   {self.grpc}",
            f"  HTTP   http://{self.http}/metrics, /livez, /readyz",
            f"  store  {self.store}",
            f"  meta   {self.meta}",
            f"  wal    {self.wal}{where}: {WAL_TEXTS.get(self.wal, '')}",
        ]
        if self.insecure:
            lines.append(
                "  WARNING: listens beyond this machine without TLS; anybody who reaches the port "
                "may read and write everything"
            )
        lines += [
            "Try, in another terminal:",
            f"  {command} topic create{server} hello",
            f"  echo 'hello, log' | {command} produce{server} hello",
            f"  {command} consume{server} hello --from earliest --until-end",
        ]
        return "\n".join(lines)
