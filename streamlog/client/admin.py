"""Topics, settings, and a node's state. Results are the messages of `admin.proto`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import grpc

from streamlog.client.calls import admin as admin_calls
from streamlog.client.calls import transaction as transaction_calls
from streamlog.client.closing import CallingClient
from streamlog.errors import StreamlogError

if TYPE_CHECKING:
    from streamlog.v1 import admin_pb2, transaction_pb2


class Admin(CallingClient):
    __doc__ = CallingClient.__doc__

    def create_topic(
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
        result: admin_pb2.TopicResult = self._caller.run(call)
        return result

    def delete_topic(self, name: str) -> None:
        """Errors: UnknownTopicOrPartition."""
        self._caller.run(admin_calls.delete_topic(name), timeout_ms=self._timeout_ms)

    def list_topics(self) -> list[admin_pb2.TopicSummary]:
        """All topics, by name."""
        topics: list[admin_pb2.TopicSummary] = []
        while True:
            last = topics[-1].name if topics else ""
            page = self._caller.run(admin_calls.list_topics(last))
            topics += page
            if len(page) < admin_calls.PAGE:
                return topics

    def describe_topic(
        self, name: str, *, allow_auto_create: bool = False
    ) -> admin_pb2.TopicDescription:
        """Errors: UnknownTopicOrPartition."""
        call = admin_calls.describe_topic(name, allow_auto_create=allow_auto_create)
        description: admin_pb2.TopicDescription = self._caller.run(call)
        return description

    def create_partitions(self, topic: str, partitions: int) -> None:
        """Raises the number of partitions to `partitions`. Errors: InvalidPartitions."""
        self._caller.run(admin_calls.create_partitions(topic, partitions))

    def describe_configs(
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
        entries: list[admin_pb2.ConfigEntry] = self._caller.run(call)
        return entries

    def alter_configs(
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
        call = admin_calls.alter_configs(
            resource, configs or {}, append, subtract, validate_only=validate_only
        )
        self._caller.run(call)

    def status(self) -> admin_pb2.GetStatusResponse:
        """The node's configuration, contents and alarms."""
        status: admin_pb2.GetStatusResponse = self._caller.run(admin_calls.status())
        return status

    def list_objects(self) -> Iterator[admin_pb2.ObjectSummary]:
        """Every object in the store, page by page."""
        token = ""
        while True:
            objects, token = self._caller.run(admin_calls.list_objects(token))
            yield from objects
            if not token:
                return

    def describe_object(self, key: str) -> admin_pb2.DescribeObjectResponse:
        """Errors: ObjectNotFound, Corrupt."""
        call = admin_calls.describe_object(key)
        description: admin_pb2.DescribeObjectResponse = self._caller.run(call)
        return description

    def backup(self) -> Iterator[bytes]:
        """The node's metadata at one moment: the bytes of a backup file, in pieces.

        Errors, also in between: Unavailable. Pieces that break off are no backup.
        """
        channel = self._caller.channel
        call: Any = channel.unary_stream(
            "/streamlog.v1.AdminService/Backup",
            request_serializer=admin_calls.backup_request,
            response_deserializer=admin_calls.backup_data,
        )
        try:
            yield from call(None, metadata=self._caller.metadata)
        except grpc.RpcError as error:
            raise self._caller.final_error(error, writes=False) from None

    def delete_records(self, topic: str, partition: int, before_offset: int | None = None) -> int:
        """Raises the log start offset (None: to the high watermark); returns the new one.

        Errors: OffsetOutOfRange, PolicyViolation.
        """
        start: int = self._caller.run(admin_calls.delete_records(topic, partition, before_offset))
        return start

    def list_transactions(
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
        found: list[transaction_pb2.Transaction] = self._caller.run(call)
        return found

    def describe_transactions(
        self, transactional_ids: Sequence[str]
    ) -> list[transaction_pb2.Transaction | StreamlogError]:
        """What each id does, or its error (TransactionalIdNotFound), in order."""
        call = transaction_calls.describe_transactions(transactional_ids)
        found: list[transaction_pb2.Transaction | StreamlogError] = self._caller.run(call)
        return found

    def abort_transaction(self, transactional_id: str) -> transaction_pb2.Transaction:
        """Fences the producer of the id, and aborts its open transaction; returns what was found.

        Errors: TransactionalIdNotFound.
        """
        call = transaction_calls.abort_transaction(transactional_id)
        found: transaction_pb2.Transaction = self._caller.run(call)
        return found
