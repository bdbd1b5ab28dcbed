"""Mutants of recoveries: metadata rebuilt from the bucket, and the WAL after a restart."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from streamlog.metadata.compaction import garbage
from streamlog.objectstore.cluster.guard import read_cluster
from streamlog.objectstore.cluster.lineage import LineageCheck
from streamlog.repair.recover import handover
from streamlog.wal import folder
from tests.simulation.mutants.mutant import Mutant, Patch


def _damage_not_explained(patch: Patch) -> None:
    async def reason_for(self: Any, error: Any) -> Any:
        return error

    patch.set(LineageCheck, "reason_for", reason_for)


def _old_nodes_not_fenced(patch: Patch) -> None:
    async def raise_lineage(store: Any, cluster_id: str, random: Any, **_: Any) -> Any:
        cluster = await read_cluster(store)
        assert cluster is not None
        return replace(cluster.lineage)

    patch.set(handover, "raise_lineage", raise_lineage)


def _not_listed_again(patch: Patch) -> None:
    async def check(store: Any, bucket: Any, needed: Any, advice: str, progress: Any) -> None:
        if not advice.startswith("A node ran"):
            await original(store, bucket, needed, advice, progress)

    original = patch.set(handover, "_check", check)


def _replayed_not_durable(patch: Patch) -> None:
    patch.set(folder, "_make_durable", lambda plan: None)


def _free_in_the_cache_only(patch: Patch) -> None:
    patch.set(folder, "_make_free_durable", lambda files, plan: None)


def _window_of_all_ids(patch: Patch) -> None:
    def orphans(tenure: Any, object_ids: Any, *args: Any, **fields: Any) -> Any:
        made = original(tenure, object_ids, *args, **fields)
        last = max(object_ids, default=None)
        return made if made.last_of_window is None else replace(made, last_of_window=last)

    original = patch.set(garbage, "Orphans", orphans)


RECOVERY_MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "free in the cache only",
        "a WAL file that reads as free is not written again",
        "disk",
        _free_in_the_cache_only,
        found_by="tests/wal/test_disk_contract.py::test_the_log_keeps_its_promises",
    ),
    Mutant(
        "window of all ids",
        "the window of a dead node ends with the highest id that it was to delete",
        "object",
        _window_of_all_ids,
        found_by="tests/repair/fsck/test_collector_guard.py"
        "::test_what_a_dead_nodes_compactor_stores_is_no_sign_of_old_metadata",
    ),
    Mutant(
        "damage not explained",
        "a node that was overtaken takes files that are gone for damage",
        "object",
        _damage_not_explained,
        found_by="tests/repair/recover/test_lineage.py"
        "::test_an_old_node_that_misses_files_names_the_lineage",
    ),
    Mutant(
        "old nodes not fenced",
        "a recovery leaves the lineage of the bucket as it was",
        "object",
        _old_nodes_not_fenced,
    ),
    Mutant(
        "not listed again",
        "a recovery does not look at the bucket again after it raised the lineage",
        "object",
        _not_listed_again,
    ),
    Mutant(
        "replayed not durable",
        "what a recovery found in the WAL is not written again",
        "disk",
        _replayed_not_durable,
        found_by="tests/wal/test_disk_contract.py::test_the_log_keeps_its_promises",
    ),
)
