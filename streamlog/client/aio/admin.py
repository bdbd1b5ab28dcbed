"""Topics, settings, and a look inside a node, for asyncio; results are `admin.proto` messages."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING

from streamlog.client.aio.channel import CallingClient
from streamlog.client.calls import admin as admin_calls
from streamlog.client.calls import transaction as transaction_calls
from streamlog.errors import StreamlogError

if TYPE_CHECKING:
    from streamlog.v1 import admin_pb2, transaction_pb2


class Admin(CallingClient):
    __doc__ = CallingClient.__doc__

    async def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        configs: Mapping[str, str] | None = None,
        *,
        validate_only: bool = False,
    ) -> admin_pb2.TopicResult:
        """Creates a topic. `partitions` None: the broker's num.partitions.

        Errors: TopicAlreadyExists, InvalidName, InvalidConfig, InvalidPartitions.
        """
        call = admin_calls.create_topic(name, partitions, configs, validate_only=validate_only)
        result: admin_pb2.TopicResult = await self._caller.run(call)
        return result

    async def delete_topic(self, name: str) -> None:
        """Errors: UnknownTopicOrPartition."""
        await self._caller.run(admin_calls.delete_topic(name), timeout_ms=self._timeout_ms)

    async def list_topics(self) -> list[admin_pb2.TopicSummary]:
        """All topics, by name."""
        topics: list[admin_pb2.TopicSummary] = []
        while True:
            page = await self._caller.run(
                admin_calls.list_topics(topics[-1].name if topics else "")
            )
            topics += page
            if len(page) < admin_calls.PAGE:
                return topics

    async def describe_topic(
        self, name: str, *, allow_auto_create: bool = False
    ) -> admin_pb2.TopicDescription:
        """Errors: UnknownTopicOrPartition."""
        call = admin_calls.describe_topic(name, allow_auto_create=allow_auto_create)
        description: admin_pb2.TopicDescription = await self._caller.run(call)
        return description

    async def create_partitions(self, topic: str, partitions: int) -> None:
        """Raises the number of partitions to `partitions`. Errors: InvalidPartitions."""
        await self._caller.run(admin_calls.create_partitions(topic, partitions))

    async def describe_configs(
        self,
        *,
        topic: str | None = None,
        broker: int | str | None = None,
        broker_default: bool = False,
        client: str | None = None,
        client_default: bool = False,
    ) -> list[admin_pb2.ConfigEntry]:
        """The settings of exactly one resource, each with its source."""
        resource = admin_calls.resource(topic, broker, broker_default, client, client_default)
        call = admin_calls.describe_configs(resource)
        entries: list[admin_pb2.ConfigEntry] = await self._caller.run(call)
        return entries

    async def alter_configs(
        self,
        *,
        configs: Mapping[str, str | None] | None = None,
        append: Mapping[str, str] | None = None,
        subtract: Mapping[str, str] | None = None,
        topic: str | None = None,
        broker: int | str | None = None,
        broker_default: bool = False,
        client: str | None = None,
        client_default: bool = False,
        validate_only: bool = False,
    ) -> None:
        """Sets settings; None as a value resets one. All changes or none.

        `append`, `subtract`: values of lists, joined by commas. `broker_default`: of all nodes.
        `client`: the quotas of a client id; `client_default`: of those that have none of their own.
        Errors: InvalidConfig; Invalid for a setting that is read when a node starts.
        """
        resource = admin_calls.resource(topic, broker, broker_default, client, client_default)
        await self._caller.run(
            admin_calls.alter_configs(
                resource, configs or {}, append, subtract, validate_only=validate_only
            )
        )

    async def status(self) -> admin_pb2.GetStatusResponse:
        """The node's configuration, contents and alarms."""
        status: admin_pb2.GetStatusResponse = await self._caller.run(admin_calls.status())
        return status

    async def list_objects(self) -> AsyncIterator[admin_pb2.ObjectSummary]:
        """Every object in the store, page by page."""
        token = ""
        while True:
            objects, token = await self._caller.run(admin_calls.list_objects(token))
            for summary in objects:
                yield summary
            if not token:
                return

    async def describe_object(self, key: str) -> admin_pb2.DescribeObjectResponse:
        """Errors: ObjectNotFound, Corrupt."""
        call = admin_calls.describe_object(key)
        description: admin_pb2.DescribeObjectResponse = await self._caller.run(call)
        return description

    async def delete_records(
        self, topic: str, partition: int, before_offset: int | None = None
    ) -> int:
        """Raises the log start offset (None: to the high watermark); returns the new one.

        Errors: OffsetOutOfRange, PolicyViolation.
        """
        start: int = await self._caller.run(
            admin_calls.delete_records(topic, partition, before_offset)
        )
        return start

    async def list_transactions(
        self,
        *,
        states: Sequence[str] = (),
        producer_ids: Sequence[int] = (),
        open_longer_than_ms: int | None = None,
        transactional_id_pattern: str = "",
    ) -> list[transaction_pb2.Transaction]:
        """The transactional ids that the node coordinates, in order, with their transactions.

        `states`: by name, such as "ongoing" or "prepare_commit"; what is left out stands for any.
        The pattern is a regular expression for the whole id.
        Errors: Invalid (the pattern, a state); CoordinatorLoadInProgress.
        """
        call = transaction_calls.list_transactions(
            states, producer_ids, open_longer_than_ms, transactional_id_pattern
        )
        found: list[transaction_pb2.Transaction] = await self._caller.run(call)
        return found

    async def describe_transactions(
        self, transactional_ids: Sequence[str]
    ) -> list[transaction_pb2.Transaction | StreamlogError]:
        """What each id does, or its error (TransactionalIdNotFound), in order."""
        call = transaction_calls.describe_transactions(transactional_ids)
        found: list[transaction_pb2.Transaction | StreamlogError] = await self._caller.run(call)
        return found

    async def abort_transaction(self, transactional_id: str) -> transaction_pb2.Transaction:
        """Fences the producer of the id, and aborts its open transaction; returns what was found.

        Errors: TransactionalIdNotFound.
        """
        call = transaction_calls.abort_transaction(transactional_id)
        found: transaction_pb2.Transaction = await self._caller.run(call)
        return found
