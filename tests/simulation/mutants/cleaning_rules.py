"""Patches of the rules that say what a cleaning keeps: both kinds of logs are cleaned by them."""

from __future__ import annotations

from typing import Any

from streamlog.log.cleaning.batch_filter import BatchFilter
from streamlog.log.cleaning.cleaned_transactions import CleanedTransactions
from tests.simulation.mutants.mutant import Patch


def tombstone_gone_at_once(patch: Patch) -> None:
    """A tombstone goes at once, also where older records of its key are still in the log."""

    def keeps(self: Any, record: Any, keeps_tombstones: bool) -> bool:
        return record[3] is not None and bool(original(self, record, keeps_tombstones))

    original = patch.set(BatchFilter, "keeps_record", keeps)


def aborted_supersedes(patch: Patch) -> None:
    """The key of an aborted record is learned: the committed one before it goes."""
    patch.set(CleanedTransactions, "is_aborted", lambda self, header: False)


def marker_gone_early(patch: Patch) -> None:
    """A marker goes with its cleaning, also where the transaction's records stay."""
    patch.set(CleanedTransactions, "is_marker_empty", lambda self, header, marker: True)
    patch.set(BatchFilter, "_is_past_horizon", lambda self, header: header.is_control)
