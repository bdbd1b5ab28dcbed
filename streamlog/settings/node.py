"""`[node]`: the places of the data, and the addresses. Flags are named after these fields."""

from __future__ import annotations

from dataclasses import dataclass

from streamlog.runtime.config import setting
from streamlog.runtime.logs import FORMATS, LEVELS

NONE = "none"
"""An address that is not listened on, although there is a default."""
KAFKA_DEV = "127.0.0.1:9092"
"""Where `dev` listens for Kafka's protocol unless it is told otherwise."""
KAFKA_ANY = "127.0.0.1:0"


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """Where the data is, and where clients reach the node."""

    data: str | None = setting(
        None,
        "A folder for everything: short for store = local:///DATA/objects, meta = "
        "rocksdb:///DATA/meta, wal_dir = DATA/wal, log_dir = DATA/logs.",
    )
    store: str | None = setting(
        None,
        "Where objects are: memory://, local:///abs/path, "
        "s3://bucket/prefix?endpoint=&region=&path_style=&client=boto3|obstore.",
    )
    meta: str | None = setting(
        None,
        "Where metadata is: memory:// or rocksdb:///abs/path (etcd:// and kv:// are for later "
        "releases). Default: rocksdb:///PATH/meta for store = local:///PATH.",
    )
    wal: str | None = setting(
        None,
        "disk acknowledges after a sync to the local disk (milliseconds; a lost disk costs records "
        "not uploaded yet); object after the upload and commit (a lost machine costs no record; "
        "`streamlog recover` rebuilds its local metadata from the store). "
        "Default: disk on local stores, object on remote ones.",
        choices=("disk", "object"),
    )
    wal_dir: str | None = setting(
        None,
        "Folder of the write-ahead log, with wal = disk. Default: DATA/wal with data, PATH/wal "
        "with store = local:///PATH.",
    )
    log_dir: str | None = setting(
        None,
        "Folder of topics with log.type = unified, in Kafka's own formats; such a topic lives on "
        "this node's disk alone. Default: DATA/logs with data; without either such topics are "
        "refused.",
    )
    accept_data_loss: bool = setting(
        False,
        "Opens unified topics that end before what was durable in the log folder. For one start, "
        "when files are lost: the log says which offsets are gone.",
    )
    node_id: int = setting(
        1, "This node's number; no two nodes of a cluster share one.", minimum=0, maximum=2**31 - 1
    )
    listen: str = setting("127.0.0.1:9644", "gRPC address, HOST:PORT; port 0 takes a free one.")
    http_listen: str = setting(
        "127.0.0.1:9645",
        "HTTP address of /metrics, /livez and /readyz; port 0 takes a free one.",
    )
    advertised: str | None = setting(
        None,
        "gRPC address that clients are told, HOST:PORT, where it is not the one that the node "
        "listens on, as behind NAT or in a container. Default: the address that it listens on. "
        "Shown in the banner and by `streamlog status`.",
    )
    http_advertised: str | None = setting(
        None, "HTTP address that clients are told, as `advertised` for gRPC."
    )
    kafka_listen: str | None = setting(
        None,
        "Addresses for Kafka's own clients, HOST:PORT, or several as NAME=HOST:PORT with commas "
        "between them; port 0 takes a free one, none listens on none. "
        f"Default: {KAFKA_DEV} in `dev`, none in `serve`.",
    )
    kafka_advertised: str | None = setting(
        None,
        "Addresses that Kafka's clients are told to connect to, HOST:PORT or, where listeners have "
        "names, NAME=HOST:PORT with commas between them. Clients use no other address, so it has "
        "to be one that they reach. Default: the address that the node listens on.",
    )
    insecure: bool = setting(
        False,
        "Allows addresses beyond loopback without TLS, or with TLS and clients that need no "
        "certificate: everyone who reaches the port may read and write everything.",
    )
    wait_at_start: bool = setting(
        True,
        "Whether a start waits for a store or metadata that is away; it logs the reason every "
        "10 s. False: it ends with the error, for supervisors that start it again.",
    )
    shutdown_grace_ms: int = setting(
        4000,
        "How long requests under way may take to end at shutdown, before they are cut off.",
        minimum=0,
        maximum=600_000,
    )
    log_format: str = setting("text", "Log lines for people or for machines.", choices=FORMATS)
    log_level: str = setting(
        "info", "The least level that is logged.", choices=LEVELS, dynamic=True
    )
