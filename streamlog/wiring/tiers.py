"""Opens the remote tiers of a node's logs: the plug-ins that the settings name, or the own ones."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TypeVar

from streamlog.errors import InvalidConfig
from streamlog.model.kv import KVClient
from streamlog.objectstore.interface import ObjectStore
from streamlog.tiered.api import RemoteLogMetadataManager, RemoteStorageManager
from streamlog.tiered.config import RemoteLogConfig
from streamlog.tiered.draft.api import DraftRemoteStorageManager
from streamlog.tiered.draft.storage_adapter import DraftStorageAdapter
from streamlog.tiered.metadata.bounded import BoundedMetadataManager
from streamlog.tiered.metadata.kv_manager import KVRemoteLogMetadataManager
from streamlog.tiered.opening import TierPlugins, TierRuntime, open_remote_log_manager
from streamlog.tiered.quotas.remote_quota import remote_quota
from streamlog.tiered.remote_log_manager import RemoteLogManager, TierQuotas
from streamlog.tiered.storage.object_storage_manager import ObjectRemoteStorageManager

P = TypeVar("P", RemoteStorageManager, RemoteLogMetadataManager)

PREFIX = "remote"
"""Of the keys of remote segments in the node's own object store."""


def tier_plugins(
    store: ObjectStore, kv: KVClient, config: RemoteLogConfig, broker_id: int
) -> TierPlugins:
    """The two plug-ins, configured; the caller closes them.

    Errors: InvalidConfig (a plug-in that cannot be had, or what it says of its settings).
    """
    storage: RemoteStorageManager
    metadata: RemoteLogMetadataManager
    if config.storage_class:
        storage = _storage_plugin(config)
    else:
        storage = ObjectRemoteStorageManager(store, PREFIX)
    if config.metadata_class:
        plugin = _plugin(
            RemoteLogMetadataManager,  # type: ignore[type-abstract]
            "remote.log.metadata.manager.class.name",
            config.metadata_class,
            {**config.metadata_configs, "broker.id": str(broker_id)},
        )
        metadata = BoundedMetadataManager(plugin, config.metadata_timeout_ms)
    else:
        metadata = KVRemoteLogMetadataManager(kv)
    return TierPlugins(storage, metadata)


async def open_tiers(
    store: ObjectStore, kv: KVClient, config: RemoteLogConfig, runtime: TierRuntime
) -> RemoteLogManager:
    """Errors: InvalidConfig (a plug-in that cannot be had, or what it says of its settings),
    Unavailable, Corrupt."""
    plugins = tier_plugins(store, kv, config, runtime.broker_id)
    clock, registry = runtime.clock, runtime.registry
    quotas = TierQuotas(
        remote_quota(
            "copy",
            config.copy_bytes_per_second,
            config.copy_windows,
            config.copy_window_s,
            clock,
            registry,
        ),
        remote_quota(
            "fetch",
            config.fetch_bytes_per_second,
            config.fetch_windows,
            config.fetch_window_s,
            clock,
            registry,
            reads_max=config.reader_tasks,
        ),
    )
    return await open_remote_log_manager(plugins, quotas, runtime, config)


def _storage_plugin(config: RemoteLogConfig) -> RemoteStorageManager:
    """Of today's interface, or of the draft's in its adapter. Errors: InvalidConfig."""
    name, path = "remote.log.storage.manager.class.name", config.storage_class
    found = _class_of(name, path)
    if issubclass(found, DraftRemoteStorageManager):
        adapter = DraftStorageAdapter(found())
        adapter.configure(config.storage_configs)
        return adapter
    return _plugin(RemoteStorageManager, name, path, config.storage_configs)  # type: ignore[type-abstract]


def _plugin(kind: type[P], name: str, path: str, configs: Mapping[str, str]) -> P:
    """Errors: InvalidConfig."""
    found = _class_of(name, path)
    if not issubclass(found, kind):
        raise InvalidConfig(f"{name} is {path!r}, which is no {kind.__name__}", name=name)
    plugin = found()
    plugin.configure(configs)
    return plugin


def _class_of(name: str, path: str) -> type[object]:
    """Errors: InvalidConfig."""
    module_name, _, class_name = path.partition(":")
    try:
        found = getattr(import_module(module_name), class_name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidConfig(
            f"{name} is {path!r}, which cannot be loaded ({error}): give `module:Class`, and "
            "install the package beside streamlog",
            name=name,
        ) from error
    if not isinstance(found, type):
        raise InvalidConfig(f"{name} is {path!r}, which is no class", name=name)
    return found
