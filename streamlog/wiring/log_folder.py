"""Opens the folder of the logs that are kept in local files."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from streamlog.format.kafka_files.names import LOCK
from streamlog.log.api.environment import LogEnvironment
from streamlog.log.api.log_factory import LogFactory, LogKind
from streamlog.log.manager import LogManager
from streamlog.model.kv import KVClient
from streamlog.runtime.disk.system_tree import SystemTree
from streamlog.runtime.disk.tree import FolderTree
from streamlog.runtime.offload import Lane, Offload
from streamlog.runtime.progress import Due, ProgressWatch
from streamlog.tiered.remote_log_manager import RemoteLogManager
from streamlog.tiered.unopened import UnopenedTiers
from streamlog.unified.log_folder import FolderOwner, LogFolder
from streamlog.unified.unified_logs import UnifiedLogFactory
from streamlog.wiring.locked_folder import open_locked
from streamlog.wiring.tiers import OpenedTiers

OpenTiers = Callable[[FolderTree], Awaitable[OpenedTiers]]


class LocalLogs:
    """The log folder of an engine, if it has one, and the kind of logs in it."""

    def __init__(
        self,
        path: Path | None,
        owner: FolderOwner,
        tree: FolderTree | None = None,
        *,
        accepts_data_loss: bool,
    ) -> None:
        """`tree`: in place of the folder at `path`; who gives it keeps others out of it."""
        self._path = path
        self._tree = tree
        self._owner = owner
        self._accepts_data_loss = accepts_data_loss
        self.folder: LogFolder | None = None
        self.tiers: RemoteLogManager | None = None
        self._opened_tiers: OpenedTiers | None = None

    async def open(
        self,
        environment: LogEnvironment,
        offload: Offload,
        kv: KVClient,
        built: AsyncExitStack,
        tiers: OpenTiers | UnopenedTiers | None = None,
    ) -> Mapping[LogKind, LogFactory]:
        """The folder, which who opens `tiers` gets, stays locked until `built` ends.

        Errors: DataInUse, ForeignCluster, Corrupt, StoreUnavailable; those of `tiers`.
        """
        tree = self._tree
        if tree is None:
            if self._path is None:
                return {}
            tree = await open_locked(
                self._path, LOCK, SystemTree, "the log folder", offload, Lane.FILES, built
            )
        self.folder = await LogFolder.open(
            tree,
            self._owner,
            environment,
            offload,
            kv=kv,
            accepts_data_loss=self._accepts_data_loss,
        )
        if tiers is None or isinstance(tiers, UnopenedTiers):
            return {LogKind.UNIFIED: UnifiedLogFactory(self.folder, tiers)}
        self._opened_tiers = await tiers(tree)
        self.tiers = self._opened_tiers.manager
        return {LogKind.UNIFIED: UnifiedLogFactory(self.folder, self.tiers)}

    async def start_tiers(self, logs: LogManager) -> None:
        """Call it when the logs may be opened. Errors: as of OpenedTiers.start."""
        if self._opened_tiers is not None:
            await self._opened_tiers.start(logs)

    def watch_progress(self, watch: ProgressWatch) -> None:
        if self.folder is not None:
            folder, after_s = self.folder, watch.config.unanswered_after_ms / 1000
            watch.watch("log_writes", lambda: folder.progress(after_s))

    def full_disk(self) -> Due | None:
        """As LogFolder.full_disk."""
        return None if self.folder is None else self.folder.full_disk()

    @property
    def alarm(self) -> str | None:
        """Why partitions of the folder are refused."""
        return None if self.folder is None else self.folder.alarm

    def tier_alarms(self) -> Sequence[str]:
        """What does not work of the remote tiers."""
        return () if self.tiers is None else self.tiers.alarms()

    async def close(self) -> None:
        """Call it when all logs are closed. Errors: StoreUnavailable."""
        if self.folder is not None:
            await self.folder.close()
        if self.tiers is not None:
            await self.tiers.close()

    async def kill(self) -> None:
        if self.folder is not None:
            await self.folder.kill()
        if self.tiers is not None:
            await self.tiers.close()
