"""Checks of the upload path for the node's progress watch (`runtime/progress.py`)."""

from __future__ import annotations

from streamlog.engine.append.flush_policy import FlushPolicy
from streamlog.engine.append.group_commit import GroupCommit
from streamlog.engine.upload.uploader import Uploader
from streamlog.errors import DiskFull
from streamlog.runtime.progress import Due, ProgressConfig, ProgressWatch
from streamlog.wal.log import WriteAheadLog


class UploadChecks:
    """Checks that uploads, WAL writes and the release of the WAL move."""

    def __init__(
        self,
        uploader: Uploader,
        policy: FlushPolicy,
        group_commit: GroupCommit | None,
        wal: WriteAheadLog | None,
    ) -> None:
        self._uploader = uploader
        # A batch may stay open by rule for the interval, or for the distance between two PUTs.
        self._open_s_max = max(policy.interval_s, policy.put_distance_s)
        self._group_commit = group_commit
        self._wal = wal

    def watch(self, watch: ProgressWatch) -> None:
        """Adds the checks: uploads, wal_writes, wal_release."""
        config = watch.config
        watch.watch("uploads", lambda: self._uploads(config))
        if self._group_commit is not None:
            commit = self._group_commit
            watch.watch("wal_writes", lambda: _wal_writes(commit, config))
        if self._wal is not None:
            wal = self._wal
            watch.watch("wal_release", lambda: self._wal_release(wal, config))

    def full_disk(self) -> Due | None:
        """A check: the WAL's disk took no more at the last try, or the store's disk has no room for
        uploads of full size."""
        refusal = None if self._group_commit is None else self._group_commit.refusal
        if isinstance(refusal, DiskFull):
            return Due("", refusal.message, 0.0)
        limit = self._uploader.limit_bytes
        if limit is None:
            return None
        return Due("", f"{self._uploader.no_room} (uploads are cut to {limit} bytes)", 0.0)

    def _uploads(self, config: ProgressConfig) -> Due | None:
        """A PUT that fails again and again raises the alarm as early as a store that is silent."""
        due, refused = self._uploader.progress(), self._uploader.refusal
        if due is None:
            return None
        unanswered_after_s = config.unanswered_after_ms / 1000
        # One failure, followed by a slow second try, does not mean that the store refuses.
        if refused is None or (
            refused.failures == 1 and refused.failed_at - refused.since < unanswered_after_s
        ):
            return due._replace(after_s=config.stalled_after_ms / 1000 + self._open_s_max)
        reason = f"{due.waits_for}: it failed {refused.failures} times, last with {refused.error}"
        return Due(due.moved, reason, unanswered_after_s, refused.since)

    def _wal_release(self, wal: WriteAheadLog, config: ProgressConfig) -> Due | None:
        if wal.released_through >= wal.last_sequence:
            return None
        return Due(
            wal.released_through,
            f"{wal.live_bytes} bytes of the WAL to be in the store; a lost disk would cost them",
            config.stalled_after_ms / 1000 + self._open_s_max,
        )


def _wal_writes(commit: GroupCommit, config: ProgressConfig) -> Due | None:
    due = commit.progress()
    if due is None or commit.refusal is None:
        return due
    # The disk answers with errors, which is known sooner than that it is stuck.
    return due._replace(after_s=config.unanswered_after_ms / 1000)
