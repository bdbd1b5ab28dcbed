"""Opens the remote tiers of a node's logs: the plug-ins that the settings name, or the own ones."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TypeVar
from uuid import UUID

from prometheus_client import CollectorRegistry

from streamlog.errors import InvalidConfig, StreamlogError
from streamlog.log.api.internal_topics import REMOTE_LOG_METADATA
from streamlog.log.manager import LogManager
from streamlog.model.kv import KVClient
from streamlog.objectstore.interface import (
    ObjectStore,
    SendRate,
)
from streamlog.runtime.clock import Clock
from streamlog.tiered.api import RemoteLogMetadataManager, RemoteStorageManager
from streamlog.tiered.config import TOPIC_BASED, RemoteLogConfig
from streamlog.tiered.draft.api import DraftRemoteStorageManager
from streamlog.tiered.draft.storage_adapter import DraftStorageAdapter
from streamlog.tiered.metadata.bounded import BoundedMetadataManager
from streamlog.tiered.metadata.kv_manager import KVRemoteLogMetadataManager
from streamlog.tiered.metadata.kv_records import SEGMENTS
from streamlog.tiered.metadata.topic_manager import TopicBasedRemoteLogMetadataManager
from streamlog.tiered.opening import TierPlugins, TierRuntime, open_remote_log_manager
from streamlog.tiered.quotas.remote_quota import remote_quota
from streamlog.tiered.remote_log_manager import RemoteLogManager, TierQuotas
from streamlog.tiered.storage.names import OWN_PREFIX
from streamlog.tiered.storage.object_storage_manager import ObjectRemoteStorageManager

P = TypeVar("P", RemoteStorageManager, RemoteLogMetadataManager)

METADATA_CLASS = "remote.log.metadata.manager.class.name"


def tier_plugins(
    store: ObjectStore, kv: KVClient, config: RemoteLogConfig, clock: Clock, broker_id: int
) -> TierPlugins:
    """The two plug-ins, configured; the caller closes them.

    Errors: InvalidConfig (a plug-in that cannot be had, or what it says of its settings).
    """
    storage: RemoteStorageManager
    metadata: RemoteLogMetadataManager
    rate = SendRate()
    if config.storage_class:
        storage = _storage_plugin(config)
    else:
        storage = ObjectRemoteStorageManager(store, OWN_PREFIX, rate)
    if config.metadata_class in TOPIC_BASED:
        topic_based = TopicBasedRemoteLogMetadataManager(None, clock)
        topic_based.configure({**config.metadata_configs, "broker.id": str(broker_id)})
        metadata = topic_based
    elif config.metadata_class:
        plugin = _plugin(
            RemoteLogMetadataManager,  # type: ignore[type-abstract]
            METADATA_CLASS,
            config.metadata_class,
            config.metadata_path,
            {**config.metadata_configs, "broker.id": str(broker_id)},
        )
        metadata = BoundedMetadataManager(plugin, config.metadata_timeout_ms)
    else:
        metadata = KVRemoteLogMetadataManager(kv)
    return TierPlugins(storage, metadata, rate)


@dataclass(frozen=True, slots=True)
class OpenedTiers:
    """A manager that is not started yet: its metadata may be in a topic, and logs come later."""

    manager: RemoteLogManager
    metadata: RemoteLogMetadataManager
    kv: KVClient

    async def start(self, logs: LogManager) -> None:
        """Call it as soon as the logs may be opened. Errors: InvalidConfig (segments are named in
        the other place), Unavailable, Corrupt."""
        if isinstance(self.metadata, TopicBasedRemoteLogMetadataManager):
            await check_no_segments(self.kv)
            self.metadata.take_logs(logs)
        has_topic = logs.topic(REMOTE_LOG_METADATA) is not None
        if isinstance(self.metadata, KVRemoteLogMetadataManager) and has_topic:
            raise _elsewhere(f"the topic {REMOTE_LOG_METADATA}", TOPIC_BASED[0])

        def name_of(topic_id: UUID) -> str | None:
            topic = logs.topic_by_id(str(topic_id))
            return None if topic is None else topic.name

        await self.manager.start(name_of)


async def check_no_segments(kv: KVClient) -> None:
    """For whoever is told to look into the topic. Errors: InvalidConfig (the metadata store names
    segments), Unavailable."""
    if await kv.list_kv(SEGMENTS, b"", limit=1):
        raise _elsewhere("the node's metadata store", "empty")


def _elsewhere(where: str, value: str) -> InvalidConfig:
    """A manager that does not know the segments there are would let them be forgotten."""
    return InvalidConfig(
        f"{METADATA_CLASS} names another place for the metadata of remote segments than {where}, "
        f"which has some: set it back to {value}",
        name=METADATA_CLASS,
    )


def tier_quotas(config: RemoteLogConfig, clock: Clock, registry: CollectorRegistry) -> TierQuotas:
    """Those of a node that starts: their windows are empty."""
    return TierQuotas(
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


async def open_tiers(
    store: ObjectStore, kv: KVClient, config: RemoteLogConfig, runtime: TierRuntime
) -> OpenedTiers:
    """Errors: InvalidConfig (a plug-in that cannot be had, or what it says of its settings),
    StoreUnavailable."""
    plugins = tier_plugins(store, kv, config, runtime.clock, runtime.broker_id)
    quotas = tier_quotas(config, runtime.clock, runtime.registry)
    manager = await open_remote_log_manager(plugins, quotas, runtime, config)
    return OpenedTiers(manager, plugins.metadata, kv)


def _storage_plugin(config: RemoteLogConfig) -> RemoteStorageManager:
    """Of today's interface, or of the draft's in its adapter. Errors: InvalidConfig."""
    name, path = "remote.log.storage.manager.class.name", config.storage_class
    found = _class_of(name, path, config.storage_path)
    if issubclass(found, DraftRemoteStorageManager):
        return _configured(lambda: DraftStorageAdapter(found()), name, path, config.storage_configs)
    return _plugin(
        RemoteStorageManager,  # type: ignore[type-abstract]
        name,
        path,
        config.storage_path,
        config.storage_configs,
    )


def _plugin(kind: type[P], name: str, path: str, places: str, configs: Mapping[str, str]) -> P:
    """Errors: InvalidConfig."""
    found = _class_of(name, path, places)
    if not issubclass(found, kind):
        raise InvalidConfig(f"{name} is {path!r}, which is no {kind.__name__}", name=name)
    return _configured(found, name, path, configs)


def _configured(make: Callable[[], P], name: str, path: str, configs: Mapping[str, str]) -> P:
    """Errors: InvalidConfig, whatever the plug-in raises."""
    try:
        plugin = make()
        plugin.configure(configs)
    except StreamlogError:
        raise
    except Exception as error:
        raise InvalidConfig(
            f"{name} is {path!r}, which does not begin: {error!r}", name=name
        ) from error
    return plugin


def _class_of(name: str, path: str, places: str) -> type[object]:
    """`places`: folders with `:` between them. Errors: InvalidConfig."""
    # For good: a plug-in may import more of what is beside it when it is used.
    sys.path += [one for one in places.split(os.pathsep) if one and one not in sys.path]
    module_name, _, class_name = path.partition(":")
    try:
        found = getattr(import_module(module_name), class_name)
    except Exception as error:
        # A module may raise anything when it is imported.
        raise InvalidConfig(
            f"{name} is {path!r}, which cannot be loaded ({error!r}): give `module:Class`, and "
            "install the package beside streamlog, or name its folder in "
            f"{name.removesuffix('name')}path",
            name=name,
        ) from error
    if not isinstance(found, type):
        raise InvalidConfig(f"{name} is {path!r}, which is no class", name=name)
    return found
