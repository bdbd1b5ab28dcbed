"""Takes topics of another log folder into an open engine."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from uuid import UUID

from streamlog.errors import (
    DiskFull,
    Invalid,
    InvalidConfig,
    PolicyViolation,
    StoreUnavailable,
    StreamlogError,
    TopicAlreadyExists,
)
from streamlog.log.topics.topics import TopicDescription
from streamlog.runtime.concurrency.cancellation import to_its_end
from streamlog.runtime.disk.folders import typed_os_error
from streamlog.runtime.offload import Lane
from streamlog.unified.adopted_copy import AdoptedLog
from streamlog.unified.adoption import (
    FoundPartition,
    FoundTopic,
    check_whole,
    find_topics,
    one_of_each_name,
    topic_names,
)
from streamlog.unified.log_folder import LogFolder
from streamlog.wiring.engine import OpenEngine

log = logging.getLogger(__name__)

OnPartition = Callable[[str, int], None]

CONFIGS: Mapping[str, str] = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
}
"""Settings of an adopted topic that were not given: a log folder does not say what they were, and
the node's defaults would delete records of it within minutes."""
TIERED = "remote.storage.enable"


async def adopt(
    engine: OpenEngine,
    source: Path,
    names: Sequence[str] = (),
    on_partition: OnPartition = lambda _name, _bytes: None,
    configs: Mapping[str, str] = CONFIGS,
    *,
    accepts_data_loss: bool = False,
) -> list[TopicDescription]:
    """Copies the topics of `source` into the log folder and creates them under their topic ids.

    `names`: those to take; where none is given all but internal ones. Those that are there already
    are left out, as long as others are not. `on_partition` is called with the name and bytes of
    each that was copied. `configs`: of each topic, beside those of CONFIGS.
    `accepts_data_loss`: a log is taken without what it had and lost. One call at a time has its
    turn. One that is cancelled in the creation of a topic ends it first; one that is cut off leaves
    whole topics, and copies that the next start removes. Errors: Invalid, InvalidConfig
    (also where a topic seems to have records in a remote tier, and remote.storage.enable is not
    given), DataInUse, Corrupt, TopicAlreadyExists, PolicyViolation (there is no log folder, or the
    topic is an internal one), StoreUnavailable (also where the log folder is in doubt).
    """
    folder = engine.log_folder
    if folder is None:
        raise PolicyViolation("topics are taken into a log folder: open the engine with log_dir")
    if folder.doubt is not None:
        raise StoreUnavailable(
            f"nothing is adopted: {folder.doubt}. Bring the newest folder back, or start the node "
            "once with --accept-data-loss, which goes on with what is there",
            path=str(folder),
            waiting_helps=False,
        )
    async with folder.adopting:
        return await _adopt(engine, folder, source, names, on_partition, configs, accepts_data_loss)


def topics_to_adopt(
    source: Path, names: Sequence[str] = (), *, is_own: bool = False
) -> list[FoundTopic]:
    """What `adopt` finds in `source`. `is_own`: this process has the folder.

    Errors: Invalid (none there), DataInUse, Corrupt, StoreUnavailable.
    """
    try:
        return find_topics(source, names, is_own=is_own)
    except OSError as error:
        raise typed_os_error(error, str(source), "looking for topics", StoreUnavailable) from error


async def _adopt(
    engine: OpenEngine,
    folder: LogFolder,
    source: Path,
    names: Sequence[str],
    on_partition: OnPartition,
    configs: Mapping[str, str],
    accepts_data_loss: bool,
) -> list[TopicDescription]:
    is_own = source.resolve() == Path(str(folder)).resolve()
    found = await engine.offload.run(
        Lane.FILES, lambda: topics_to_adopt(source, names, is_own=is_own)
    )
    configs = {**CONFIGS, **configs, "log.type": "unified"}
    for topic in (topics := _to_take(engine, source, found, has_names=bool(names), is_own=is_own)):
        check_whole(topic)
        _check_free(engine, topic, is_own=is_own)
        if TIERED not in configs:
            _check_local(topic)
        # What is refused is refused before anything is copied.
        await engine.logs.create_topic(
            topic.name, len(topic.partitions), configs, validate_only=True
        )

    settings = engine.logs.defaults.of_topic(configs)

    async def copy(one: FoundPartition, topic_id: UUID) -> AdoptedLog:
        copied = await folder.adopt(one, topic_id, settings, accepts_data_loss=accepts_data_loss)
        on_partition(str(one.partition), copied.copied_bytes)
        return copied

    return [await _with_room(_take(engine, folder, topic, configs, copy)) for topic in topics]


async def _take(
    engine: OpenEngine,
    folder: LogFolder,
    topic: FoundTopic,
    configs: Mapping[str, str],
    copy: Callable[[FoundPartition, UUID], Awaitable[AdoptedLog]],
) -> TopicDescription:
    """Nothing but copies is there before all of them have been read."""
    try:
        for one in topic.partitions:
            if one.others:
                others = ", ".join(path.name for path in one.others)
                why = "whose log ends last" if one.is_aside else "which is in use"
                log.warning("%s is taken, %s, and not %s", one.path.name, why, others)
            copied = await copy(one, topic.topic_id)
            # No id is given out any more that a producer of the partition has, or is below it.
            # Before there is a topic: a call that is cut off behind its creation is not repeated.
            await engine.logs.pass_over_producer_ids(1 + copied.producer_id_max)
    except BaseException:
        await folder.give_up_copies()
        raise

    async def create() -> TopicDescription:
        try:
            return await engine.logs.create_topic(
                topic.name, len(topic.partitions), configs, topic_id=topic.topic_id
            )
        except StreamlogError:
            await folder.give_up_copies()
            raise

    # The creation goes on where it is cancelled, and takes the copies: no other adoption comes
    # between.
    return await to_its_end(create())


async def _with_room(taking: Awaitable[TopicDescription]) -> TopicDescription:
    """A node goes on by itself when there is space; a tool has ended."""
    try:
        return await taking
    except DiskFull as error:
        raise DiskFull(
            f"the adoption has no room at {error.path}: free some space, and adopt again",
            path=error.path,
        ) from error


def local_topics(folder: Path) -> list[str]:
    """Names of the topics whose partitions lie in a log folder; none where there is no folder.

    Errors: OSError.
    """
    return topic_names(folder) if folder.is_dir() else []


def _known(engine: OpenEngine, topic: FoundTopic) -> TopicDescription | None:
    return engine.logs.topic(topic.name) or engine.logs.topic_by_id(str(topic.topic_id))


def _to_take(
    engine: OpenEngine,
    source: Path,
    found: Sequence[FoundTopic],
    *,
    has_names: bool,
    is_own: bool,
) -> list[FoundTopic]:
    """Without those that are there, as an adoption of several that failed leaves those before it;
    where no names were given those of the node's own folder, too, whose name another one has by
    now. Where each that was named is there, all of them: they are refused. Errors: Invalid."""

    def is_missing(topic: FoundTopic) -> bool:
        return not _is_left_out(engine, topic, is_own=is_own, also_by_name=is_own and not has_names)

    if has_names:
        topics = one_of_each_name(found)
        return list(filter(is_missing, topics)) or topics
    # In another folder the topic in use may have been taken by now: those beside it are not.
    missing = list(filter(is_missing, found if is_own else one_of_each_name(found)))
    if not missing:
        raise Invalid(f"each topic of {source} is there already")
    return one_of_each_name(missing)


def _is_left_out(
    engine: OpenEngine, topic: FoundTopic, *, is_own: bool, also_by_name: bool
) -> bool:
    """Whether the topic is there, `also_by_name`: or another one of its name. Tells of what is left
    out."""
    known = _known(engine, topic)
    if known is None or not (also_by_name or known.topic_id == str(topic.topic_id)):
        return False
    folders = topic.aside if is_own else topic.folders
    if folders:
        log.warning(
            "%s is left out: there is a topic %s (id %s)",
            ", ".join(folders),
            known.name,
            known.topic_id,
        )
    return True


def _check_free(engine: OpenEngine, topic: FoundTopic, *, is_own: bool) -> None:
    """Errors: TopicAlreadyExists."""
    known = _known(engine, topic)
    if known is not None:
        # With a topic its files go: in the node's own folder they are what was to be adopted, and
        # one of the same id may have been adopted before.
        is_other = not is_own and known.topic_id != str(topic.topic_id)
        advice = ": delete it first, or name the topics to take without it" if is_other else ""
        raise TopicAlreadyExists(
            f"there is a topic {known.name} (id {known.topic_id}) already{advice}",
            topic=topic.name,
        )


def _check_local(topic: FoundTopic) -> None:
    """Without a tier a log begins with its files, and a tier that it gets later deletes what lies
    before them. Errors: InvalidConfig."""
    for found in topic.partitions:
        if found.has_remote:
            raise InvalidConfig(
                f"{found.partition} begins at offset {found.log_start_offset}, and its files at "
                f"{found.local_log_start_offset}: those before them are in a remote tier, or lost, "
                "or were deleted, and another topic of the name has removed where the log began. "
                f"Give {TIERED}=true (--topic-config), which keeps them, or {TIERED}=false, "
                "which gives them up for good, and nothing where they were deleted",
                name=TIERED,
            )
