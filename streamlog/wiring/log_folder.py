"""Opens the folder of the logs that are kept in local files."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path

from streamlog.errors import StoreUnavailable
from streamlog.format.kafka_files.names import LOCK
from streamlog.log.api.environment import LogEnvironment
from streamlog.log.api.log_factory import LogFactory, LogKind
from streamlog.model.kv import KVClient
from streamlog.runtime.disk.folders import typed_os_error
from streamlog.runtime.disk.lockfile import Lock, hold
from streamlog.runtime.disk.system_tree import SystemTree
from streamlog.runtime.offload import Lane, Offload, run_owned
from streamlog.runtime.progress import ProgressWatch
from streamlog.unified.log_folder import FolderOwner, LogFolder
from streamlog.unified.unified_logs import UnifiedLogFactory


class LocalLogs:
    """The log folder of an engine, if it has one, and the kind of logs in it."""

    def __init__(self, path: Path | None, owner: FolderOwner, *, accepts_data_loss: bool) -> None:
        self._path = path
        self._owner = owner
        self._accepts_data_loss = accepts_data_loss
        self.folder: LogFolder | None = None

    async def open(
        self,
        environment: LogEnvironment,
        offload: Offload,
        kv: KVClient,
        built: AsyncExitStack,
    ) -> Mapping[LogKind, LogFactory]:
        """The folder stays locked until `built` ends. Errors: DataInUse, ForeignCluster, Corrupt,
        StoreUnavailable."""
        path = self._path
        if path is None:
            return {}

        def opening() -> tuple[SystemTree, Lock]:
            tree = SystemTree(path)
            return tree, hold(str(path / LOCK))

        try:
            tree, lock = await run_owned(
                offload, Lane.FILES, opening, lambda held: held[1].release()
            )
        except OSError as error:
            doing = "opening the log folder"
            raise typed_os_error(error, str(path), doing, StoreUnavailable) from error
        built.callback(lock.release)
        self.folder = await LogFolder.open(
            tree,
            self._owner,
            environment,
            offload,
            kv=kv,
            accepts_data_loss=self._accepts_data_loss,
        )
        return {LogKind.UNIFIED: UnifiedLogFactory(self.folder)}

    def watch_progress(self, watch: ProgressWatch) -> None:
        if self.folder is not None:
            watch.watch("log_writes", self.folder.progress)

    @property
    def alarm(self) -> str | None:
        """Why partitions of the folder are refused."""
        return None if self.folder is None else self.folder.alarm

    async def close(self) -> None:
        """Call it when all logs are closed. Errors: StoreUnavailable."""
        if self.folder is not None:
            await self.folder.close()

    async def kill(self) -> None:
        if self.folder is not None:
            await self.folder.kill()
