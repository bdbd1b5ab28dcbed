"""Quotas over Kafka's protocol, in every version: described by filters, changed, refused."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from streamlog.errors import StreamlogError
from streamlog.kafka.messages import alter_client_quotas_request, describe_client_quotas_request
from streamlog.kafka.protocol.apis import ApiKey
from streamlog.kafka.protocol.errors import KafkaError
from streamlog.server.context import Operation
from streamlog.server.limits.quotas.quota_values import QuotaValues
from tests.server.quotas.scenes import StoredQuotasOfTest
from tests.support.kafka_handlers import KafkaHandlers, all_but, kafka_handlers

VERSIONS = (0, 1)
EXACT, DEFAULT, ANY = range(3)
CLIENT = "client-id"

Entity = list[tuple[str, str | None]]
Quotas = dict[str | None, dict[str, float]]


async def alter(
    made: KafkaHandlers,
    *entries: tuple[Entity, Mapping[str, float | None] | list[tuple[str, float | None]]],
    validate_only: bool = False,
    version: int = 1,
) -> list[tuple[int, str | None]]:
    """The answer to each entity; None removes a quota."""
    message = alter_client_quotas_request
    asked = [
        message.EntryData(
            entity=[message.EntityData(entity_type=kind, entity_name=name) for kind, name in named],
            ops=[
                message.OpData(key=key, value=value or 0.0, remove=value is None)
                for key, value in (ops.items() if isinstance(ops, Mapping) else ops)
            ],
        )
        for named, ops in entries
    ]
    request = message.AlterClientQuotasRequest(entries=asked, validate_only=validate_only)
    response = await made.ask(ApiKey.ALTER_CLIENT_QUOTAS, version, request)
    for answered, (named, _) in zip(response.entries, entries, strict=True):
        assert [(one.entity_type, one.entity_name) for one in answered.entity] == named
    return [(entry.error_code, entry.error_message) for entry in response.entries]


async def put(made: KafkaHandlers, client_id: str | None, **quotas: float | None) -> None:
    assert await alter(made, ([(CLIENT, client_id)], quotas)) == [(0, None)]


async def ask(
    made: KafkaHandlers,
    *components: tuple[str, int, str | None],
    strict: bool = False,
    version: int = 1,
) -> Any:
    message = describe_client_quotas_request
    request = message.DescribeClientQuotasRequest(
        components=[
            message.ComponentData(entity_type=kind, match_type=match, match=name)
            for kind, match, name in components
        ],
        strict=strict,
    )
    return await made.ask(ApiKey.DESCRIBE_CLIENT_QUOTAS, version, request)


async def described(
    made: KafkaHandlers, *components: tuple[str, int, str | None], **options: Any
) -> Quotas:
    response = await ask(made, *components, **options)
    assert (response.error_code, response.error_message) == (0, None)
    found: Quotas = {}
    for entry in response.entries:
        [one] = entry.entity
        assert one.entity_type == CLIENT
        found[one.entity_name] = {value.key: value.value for value in entry.values}
    assert len(found) == len(response.entries)
    return found


@pytest.mark.parametrize("version", VERSIONS)
def test_quotas_are_set_removed_and_described(version: int) -> None:
    async def main() -> None:
        async with kafka_handlers() as made:
            assert await described(made, version=version) == {}
            first = {"producer_byte_rate": 1000.0, "request_percentage": 0.5}
            answers = await alter(
                made,
                ([(CLIENT, "a")], first),
                ([(CLIENT, None)], {"consumer_byte_rate": 7.0}),
                version=version,
            )
            assert answers == [(0, None), (0, None)]
            expected: Quotas = {None: {"consumer_byte_rate": 7.0}, "a": first}
            assert await described(made, version=version) == expected
            limited = made.services.resources.quotas.of("a")
            assert limited is not None
            assert limited.values == QuotaValues(1000, 7, 0.5), "in force at once"
            gone: dict[str, float | None] = {"producer_byte_rate": None, "consumer_byte_rate": None}
            assert await alter(made, ([(CLIENT, "a")], gone), version=version) == [(0, None)]
            assert (await described(made))["a"] == {"request_percentage": 0.5}
            await put(made, "a", request_percentage=None)
            await put(made, None, consumer_byte_rate=None)
            assert await described(made) == {}
            assert made.services.resources.quotas.of("a") is None

    asyncio.run(main())


def test_filters_name_entities_exactly_by_default_or_any_strictly_or_not() -> None:
    async def main() -> None:
        async with kafka_handlers() as made:
            for client_id in ("a", "b", None):
                await put(made, client_id, producer_byte_rate=1)
            for strict in (False, True):
                for component, expected in (
                    ((CLIENT, EXACT, "a"), {"a"}),
                    ((CLIENT, EXACT, "none"), set()),
                    ((CLIENT, DEFAULT, None), {None}),
                    ((CLIENT, ANY, None), {"a", "b", None}),
                    (("user", ANY, None), set()),
                    (("user", EXACT, "a"), set()),
                    (("ip", DEFAULT, None), set()),
                ):
                    assert set(await described(made, component, strict=strict)) == expected
                both = (CLIENT, ANY, None), ("user", ANY, None)
                assert await described(made, *both, strict=strict) == {}
            assert set(await described(made)) == {"a", "b", None}
            assert await described(made, strict=True) == {}

    asyncio.run(main())


@pytest.mark.parametrize(
    ("components", "reason"),
    [
        ([("group", ANY, None)], "unknown type"),
        ([("", ANY, None)], "unknown type"),
        ([(CLIENT, EXACT, None)], "name to match"),
        ([(CLIENT, DEFAULT, "a")], "name to match"),
        ([(CLIENT, ANY, "a")], "name to match"),
        ([(CLIENT, 3, None)], "match type 3"),
        ([(CLIENT, ANY, None), (CLIENT, EXACT, "a")], "more than once"),
        ([("ip", ANY, None), (CLIENT, ANY, None)], "ip cannot"),
    ],
)
def test_wrong_filters_are_refused(
    components: list[tuple[str, int, str | None]], reason: str
) -> None:
    async def main() -> None:
        async with kafka_handlers() as made:
            response = await ask(made, *components)
            assert response.error_code == KafkaError.INVALID_REQUEST
            assert reason in response.error_message
            assert response.entries is None

    asyncio.run(main())


RATE = {"producer_byte_rate": 1.0}


@pytest.mark.parametrize(
    ("entity", "ops", "reason"),
    [
        ([], RATE, "empty"),
        ([("group", "g")], RATE, "unknown type"),
        ([("user", "u")], RATE, "no users yet"),
        ([("user", None)], RATE, "no users yet"),
        ([("user", "u"), (CLIENT, "c")], RATE, "no users yet"),
        ([("ip", "127.0.0.1")], RATE, "addresses"),
        ([(CLIENT, "c"), (CLIENT, "d")], RATE, "more than once"),
        ([(CLIENT, "")], RATE, "empty"),
        ([(CLIENT, "c" * 256)], RATE, "at most 255"),
        ([(CLIENT, "c")], {"leader_byte_rate": 1.0}, "unknown quota"),
        ([(CLIENT, "c")], {"leader_byte_rate": None}, "unknown quota"),
        ([(CLIENT, "c")], {"controller_mutation_rate": 1.0}, "unknown quota"),
        ([(CLIENT, "c")], {"producer_byte_rate": -1.0}, "greater than 0"),
        ([(CLIENT, "c")], {"consumer_byte_rate": 0.0}, "greater than 0"),
        ([(CLIENT, "c")], {"request_percentage": -0.5}, "greater than 0"),
        ([(CLIENT, "c")], {"producer_byte_rate": 1.5}, "whole number"),
        ([(CLIENT, "c")], [("producer_byte_rate", 1.0), ("producer_byte_rate", None)], "once"),
    ],
)
def test_wrong_changes_are_refused_and_others_of_the_request_are_made(
    entity: Entity, ops: Any, reason: str
) -> None:
    async def main() -> None:
        async with kafka_handlers() as made:
            wrong, right = await alter(made, (entity, ops), ([(CLIENT, "right")], RATE))
            assert wrong[0] == KafkaError.INVALID_REQUEST
            assert reason in str(wrong[1])
            assert right == (0, None)
            assert await described(made) == {"right": RATE}

    asyncio.run(main())


def test_an_entity_is_changed_as_a_whole_or_not_and_once_in_a_request() -> None:
    async def main() -> None:
        async with kafka_handlers() as made:
            half = {"producer_byte_rate": 1.0, "consumer_byte_rate": -1.0}
            [(code, _)] = await alter(made, ([(CLIENT, "a")], half))
            assert code == KafkaError.INVALID_REQUEST
            assert await described(made) == {}
            first, second = await alter(
                made, ([(CLIENT, "a")], RATE), ([(CLIENT, "a")], {"consumer_byte_rate": 2.0})
            )
            assert first == (0, None)
            assert second[0] == KafkaError.INVALID_REQUEST
            assert await described(made) == {"a": RATE}

    asyncio.run(main())


def test_a_change_to_be_validated_alone_changes_nothing() -> None:
    async def main() -> None:
        async with kafka_handlers() as made:
            good, bad = await alter(
                made,
                ([(CLIENT, "a")], RATE),
                ([(CLIENT, "b")], {"producer_byte_rate": 0.5}),
                validate_only=True,
            )
            assert good == (0, None)
            assert bad[0] == KafkaError.INVALID_REQUEST
            assert await described(made) == {}

    asyncio.run(main())


def test_both_need_the_rights_of_settings() -> None:
    async def main() -> None:
        refused = (Operation.DESCRIBE_CONFIGS, ""), (Operation.ALTER_CONFIGS, "")
        async with kafka_handlers(authorize=all_but(*refused)) as made:
            response = await ask(made)
            assert response.error_code == KafkaError.CLUSTER_AUTHORIZATION_FAILED
            [(code, _)] = await alter(made, ([(CLIENT, "a")], RATE))
            assert code == KafkaError.CLUSTER_AUTHORIZATION_FAILED

    asyncio.run(main())


def test_what_a_newer_version_stored_is_not_shown_and_stays_or_is_deleted() -> None:
    async def main() -> None:
        async with kafka_handlers() as made:
            newer = {"producer_byte_rate": "5", "records_rate": "6"}
            await made.logs.alter_client_configs("a", lambda _: newer)
            assert await described(made) == {"a": {"producer_byte_rate": 5.0}}
            await put(made, "a", producer_byte_rate=None)
            assert await described(made) == {}
            assert made.logs.client_configs.of("a") == {"records_rate": "6"}
            await put(made, "a", records_rate=None)
            assert made.logs.client_configs.of("a") == {}

    asyncio.run(main())


def test_a_request_for_too_much_is_refused_in_its_own_words() -> None:
    async def main() -> None:
        async with kafka_handlers() as made:
            bound = made.services.resources.limits.partitions_per_request_max
            one: tuple[Entity, Mapping[str, float | None]] = ([(CLIENT, "c")], dict(RATE))
            many = [one] * (bound + 1)
            with pytest.raises(StreamlogError, match="split it"):
                await alter(made, *many)
            assert await described(made) == {}

    asyncio.run(main())


def test_thousands_are_described_in_one_answer() -> None:
    async def main() -> None:
        async with kafka_handlers() as made:
            stored = StoredQuotasOfTest()
            for number in range(3000):
                stored.put(f"c{number}", producer_byte_rate=str(number + 1))
            made.logs.client_configs = stored  # type: ignore[assignment]
            found = await described(made, (CLIENT, ANY, None), strict=True)
            assert len(found) == 3000
            assert found["c2999"] == {"producer_byte_rate": 3000.0}

    asyncio.run(main())
