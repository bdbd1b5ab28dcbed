"""Fetch (1): long polls of consumers, with sessions (KIP-227) or without.

1. A session id and epoch say what the request is: (any, 0) names all partitions and opens a
   session, (any, -1) names all and opens none; both end the session with that id. Any other epoch
   goes on with a session and names what is new in it.
2. FetchService reads what has changed and waits for more.
3. An answer to a request that names all partitions holds all of them; one of a session only those
   with records, an error, or another high watermark or log start offset than it was told last.

A request without any partition is answered at once, as in Kafka. A follower is refused, because
partitions have none here; where its offset is in a remote tier alone it hears that, as from Kafka's
leaders (KIP-405). Source: Kafka's FetchManager, FetchContext and KafkaApis.handleFetchRequest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from streamlog.kafka.messages.fetch_request import FetchPartition, FetchRequest
from streamlog.kafka.messages.fetch_response import (
    FetchableTopicResponse,
    FetchResponse,
    PartitionData,
)
from streamlog.kafka.protocol.apis import ApiKey
from streamlog.kafka.protocol.errors import KafkaError
from streamlog.kafka.protocol.topic_ids import id_bytes, id_text
from streamlog.server.composition import Services
from streamlog.server.kafka.call import Handle, KafkaCall
from streamlog.server.kafka.handlers.partition_questions import (
    check_consumer,
    check_count,
    isolation,
)
from streamlog.server.kafka.sessions.answer import FetchAnswer, Leaders, empty_partition
from streamlog.server.kafka.sessions.cache import FetchSessions
from streamlog.server.kafka.sessions.session import (
    FetchSession,
    Key,
    SessionPartition,
    WantedPartition,
    WantedTopic,
)
from streamlog.server.services.records.partition_read import PartitionRead
from streamlog.server.services.records.positions import ReadPosition, Superseded
from streamlog.server.services.records.requests import FetchBounds

TOPIC_IDS_FROM = 13
TIERED_STORAGE_FROM = 14
"""Followers know OFFSET_MOVED_TO_TIERED_STORAGE from this version on."""
REPLICA_STATE_FROM = 15
OPENS_SESSION = 0
ENDS_SESSION = -1


class FetchHandler:
    """Has the node's sessions: a consumer goes on with its own over any connection."""

    def __init__(
        self, services: Services, leaders: Leaders, sessions: FetchSessions | None = None
    ) -> None:
        resources = services.resources
        if sessions is None:
            metrics = resources.metrics.fetch_sessions
            sessions = FetchSessions(resources.clock, resources.random, resources.limits, metrics)
        self._fetch = services.fetch
        self._leaders = leaders
        self._limits = resources.limits
        self._sessions = sessions

    def routes(self) -> Mapping[ApiKey, Handle]:
        return {ApiKey.FETCH: self.fetch}

    async def fetch(self, call: KafkaCall, request: FetchRequest) -> FetchResponse:
        """Cancellation leaves the session as it was but for its epoch: the client's next request
        that names all partitions ends it. Errors: Invalid."""
        check_count(request.topics, self._limits)
        replica_id = _replica_id(call, request)
        if replica_id >= 0 and call.version >= TIERED_STORAGE_FROM:
            return await self._follower(call, request, replica_id)
        check_consumer(replica_id)
        if request.session_epoch in (OPENS_SESSION, ENDS_SESSION):
            return await self._full(call, request)
        return await self._incremental(call, request)

    async def _full(self, call: KafkaCall, request: FetchRequest) -> FetchResponse:
        level = isolation(request.isolation_level)
        if request.session_id:
            self._sessions.remove(request.session_id)
        session = FetchSession(uses_topic_ids=call.version >= TOPIC_IDS_FROM, isolation=level)
        is_kept = False
        try:
            turn = session.consumer.begin()
            session.update(_wanted(call, request))
            reads = await self._reads(call, request, session, turn)
            if request.session_epoch == OPENS_SESSION:
                is_kept = self._sessions.keep(session)
            answer = FetchAnswer(call, session, level, self._leaders)
            for position in session.partitions.values():
                answer.add(position, reads[position])
            if is_kept:
                session.finish(turn, reads.values())
            self._fetch.count(call.context, answer.reads)
            return answer.response()
        finally:
            if not is_kept:
                session.close()

    async def _follower(
        self, call: KafkaCall, request: FetchRequest, replica_id: int
    ) -> FetchResponse:
        """No records, no session. Errors: Invalid, unless an offset is in a remote tier alone."""
        session = FetchSession(uses_topic_ids=True, isolation=isolation(request.isolation_level))
        try:
            session.update(_wanted(call, request))
            wanted = session.partitions
            moved = await self._fetch.in_remote_tier(call.context, list(wanted.values()))
        finally:
            session.close()
        if not moved:
            check_consumer(replica_id)
        topics: dict[str, list[PartitionData]] = {}
        for (topic_id, partition), position in wanted.items():
            code = KafkaError.INVALID_REQUEST
            if position in moved:
                code = KafkaError.OFFSET_MOVED_TO_TIERED_STORAGE
            topics.setdefault(topic_id, []).append(empty_partition(partition, code))
        return FetchResponse(
            responses=[
                FetchableTopicResponse(topic_id=id_bytes(topic_id), partitions=partitions)
                for topic_id, partitions in topics.items()
            ]
        )

    async def _incremental(self, call: KafkaCall, request: FetchRequest) -> FetchResponse:
        session = self._sessions.get(request.session_id)
        if session is None:
            return FetchResponse(error_code=KafkaError.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != request.session_epoch:
            return FetchResponse(error_code=KafkaError.INVALID_FETCH_SESSION_EPOCH)
        if session.uses_topic_ids != (call.version >= TOPIC_IDS_FROM):
            return FetchResponse(error_code=KafkaError.FETCH_SESSION_TOPIC_ID_ERROR)
        level = isolation(request.isolation_level)
        turn = session.consumer.begin()
        session.update(_wanted(call, request))
        session.forget(_forgotten(call, request))
        self._sessions.touch(session)
        if not session.partitions:
            self._sessions.remove(session.session_id)
            return FetchResponse()
        if not self._sessions.has_room():
            # The client opens another session then, and is told that it is not kept.
            self._sessions.remove(session.session_id)
            return FetchResponse(error_code=KafkaError.FETCH_SESSION_ID_NOT_FOUND)
        session.advance()
        session.read_at(level)
        try:
            reads = await self._reads(call, request, session, turn)
            session.finish(turn, reads.values())
        except Superseded:
            return FetchResponse(
                error_code=KafkaError.INVALID_FETCH_SESSION_EPOCH, session_id=session.session_id
            )
        answer = FetchAnswer(call, session, level, self._leaders)
        for position, read in reads.items():
            if isinstance(position, SessionPartition) and position.has_news(read):
                answer.add(position, read)
        self._fetch.count(call.context, answer.reads)
        return answer.response()

    async def _reads(
        self, call: KafkaCall, request: FetchRequest, session: FetchSession, turn: int
    ) -> dict[ReadPosition, PartitionRead]:
        if not session.partitions:
            return {}
        # Kafka answers at once where no bytes are asked for; gRPC's 0 stands for one byte.
        has_to_wait = request.min_bytes > 0
        bounds = FetchBounds(
            max_wait_ms=max(0, request.max_wait_ms) if has_to_wait else 0,
            min_bytes=request.min_bytes,
            max_bytes=max(1, request.max_bytes),
            isolation=isolation(request.isolation_level),
            partitions=len(session.partitions),
            is_complete=not session.session_id,
        )
        if call.limited is None:
            return await self._fetch.poll(call.context, session.consumer, turn, bounds)
        with call.limited.fetching() as room:
            bounds = bounds._replace(room=room)
            return await self._fetch.poll(call.context, session.consumer, turn, bounds)


def _replica_id(call: KafkaCall, request: FetchRequest) -> int:
    if call.version < REPLICA_STATE_FROM:
        return request.replica_id
    state = request.replica_state
    return -1 if state is None else state.replica_id


def _wanted(call: KafkaCall, request: FetchRequest) -> Iterator[WantedTopic]:
    for topic in request.topics:
        name = id_text(topic.topic_id) if call.version >= TOPIC_IDS_FROM else topic.topic
        yield WantedTopic(name, [_wanted_partition(part) for part in topic.partitions])


def _wanted_partition(part: FetchPartition) -> WantedPartition:
    return WantedPartition(
        part.partition,
        part.fetch_offset,
        max(1, part.partition_max_bytes),
        part.current_leader_epoch if part.current_leader_epoch >= 0 else None,
        part.last_fetched_epoch if part.last_fetched_epoch >= 0 else None,
    )


def _forgotten(call: KafkaCall, request: FetchRequest) -> Iterable[Key]:
    for topic in request.forgotten_topics_data:
        name = id_text(topic.topic_id) if call.version >= TOPIC_IDS_FROM else topic.topic
        for partition in topic.partitions:
            yield name, partition
