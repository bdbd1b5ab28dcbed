"""The text that a node prints when it is up: its addresses, its data, and what to type next."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from streamlog.server.addresses import Endpoint

LOST_METADATA = (
    "losing this machine loses the metadata on it; `streamlog recover` rebuilds it from the store, "
    "all records and topics included, user values and changed topic settings not "
    "(docs/operations.md)"
)
ACKNOWLEDGED = {
    "disk": "acknowledged after a sync to this disk",
    "object": "acknowledged after the upload and commit",
}


def durability(wal: str, store: str, meta: str) -> str:
    """When an append is acknowledged, and what is lost with the machine. Arguments: as in status.

    The WAL mode alone does not decide it: objects and metadata may be on the same machine.
    """
    acknowledged = ACKNOWLEDGED.get(wal, "")
    if store.startswith("memory:") or meta.startswith("memory:"):
        return f"{acknowledged}; what is in memory ends with this process"
    if store.startswith("local:"):
        return f"{acknowledged}; objects are on this machine, too: losing its disk loses all"
    lost = [
        "losing its disk loses what was acknowledged and not uploaded yet (seconds)"
        if wal == "disk"
        else "",
        LOST_METADATA if meta.startswith("rocksdb:") else "",
    ]
    return "; ".join([acknowledged, *filter(None, lost)])


@dataclass(frozen=True, slots=True)
class Banner:
    """`grpc` and `http` are the addresses, HOST:PORT, that the node listens on."""

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
    log_dir: str
    """Folder of unified topics; empty: they are refused."""
    insecure: bool
    pid: int
    note: str = ""
    listeners: tuple[Endpoint, ...] = ()
    tls: str = ""
    """What clients have to bring, for people; empty: the node speaks no TLS."""
    https: bool = False
    requires_certificates: bool = False
    """Of its clients."""

    def _durability(self) -> str:
        return durability(self.wal, self.store, self.meta)

    def _kafka(self) -> list[str]:
        """The listeners of Kafka's protocol, for people."""
        kafka = [listener for listener in self.listeners if listener.protocol.startswith("kafka")]
        is_plain = len(kafka) == 1 and kafka[0].name == "kafka"
        return [
            listener.address if is_plain else f"{listener.address} ({listener.name})"
            for listener in kafka
        ]

    def as_json(self) -> str:
        return json.dumps({**asdict(self), "lost_disk": self._durability()})

    def as_text(self, command: str = "streamlog") -> str:
        """`command`: how the user typed our name."""
        where = f" in {self.wal_dir}" if self.wal_dir else ""
        server = "" if self.grpc == "127.0.0.1:9644" else f" --server {self.grpc}"
        if self.tls:
            server += " --tls-ca CA.pem"
        if self.requires_certificates:
            server += " --tls-cert CLIENT.pem --tls-key CLIENT.key"
        lines = [
            f"streamlog {self.version} ({self.mode}), node {self.node_id}, "
            f"cluster {self.cluster_id}, process {self.pid}",
            f"  gRPC   {self.grpc}",
            *(f"  Kafka  {text}, by partition: no consumer groups yet" for text in self._kafka()),
            f"  HTTP   http{'s' if self.https else ''}://{self.http}/metrics, /livez, /readyz",
            f"  store  {self.store}",
            f"  meta   {self.meta}",
            f"  wal    {self.wal}{where}: {self._durability()}",
        ]
        if self.log_dir:
            lines.append(
                f"  files  {self.log_dir}: topics with log.type=unified, on this disk alone: "
                "losing it loses them; acknowledged after a sync to it, but for topics with "
                "flush.messages or flush.ms, which a power cut costs what was not synced by then"
            )
        lines += [
            f"  {endpoint.name} is advertised as {endpoint.advertised}"
            for endpoint in self.listeners
            if endpoint.advertised != endpoint.address
        ]
        if self.tls:
            lines.append(f"  TLS    {self.tls}")
        if self.note:
            lines.append(f"  NOTE   {self.note}")
        if self.insecure:
            lines.append(
                "  WARNING: listens beyond this machine, and clients need no certificate; everyone "
                "who reaches the port may read and write everything"
            )
        lines += [
            "Try, in another terminal:",
            f"  {command} topic create{server} hello",
            f"  echo 'hello, log' | {command} produce{server} hello",
            f"  {command} consume{server} hello --from earliest --until-end",
        ]
        return "\n".join(lines)
