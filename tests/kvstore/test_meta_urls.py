"""Metadata URLs: what is parsed, what is refused and how, what opens which store."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog import wiring
from streamlog.errors import Invalid
from streamlog.kvstore.memory.store import MemoryKVStore
from streamlog.kvstore.opening import is_shared, lock_paths, open_kv
from streamlog.kvstore.rocks.store import RocksKVStore
from streamlog.kvstore.url import (
    EtcdUrl,
    MemoryMetaUrl,
    MetaUrl,
    RemoteKVUrl,
    RocksUrl,
    check_available,
    parse_meta_url,
)
from streamlog.runtime.offload import ThreadOffload
from streamlog.testing.clocks import ManualClock

ETCD, REMOTE = EtcdUrl((("a", 1),)), RemoteKVUrl("a", 1)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("memory://", MemoryMetaUrl()),
        ("rocksdb:///data/meta", RocksUrl("/data/meta")),
        ("etcd://a:2379,b:2380/cells/1", EtcdUrl((("a", 2379), ("b", 2380)), "cells/1")),
        ("etcd://a:2379", EtcdUrl((("a", 2379),))),
        ("kv://127.0.0.1:9700", RemoteKVUrl("127.0.0.1", 9700)),
    ],
)
def test_meta_urls(text: str, expected: object) -> None:
    assert parse_meta_url(text) == expected
    assert parse_meta_url(str(expected)) == expected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("/data/meta", "did you mean rocksdb:///data/meta?"),
        ("rocks:///x", "did you mean rocksdb://?"),
        ("rocksbd:///x", "did you mean rocksdb://?"),
        ("local:///x", "there is no meta scheme"),
        ("etcd://", "not host:port"),
        ("etcd://a:2379,b", "not host:port"),
        ("etcd://a:0", "not host:port"),
        ("kv://host", "not host:port"),
        ("kv://host:1/x", "no path"),
        ("kv://host:99999", "ort"),
    ],
)
def test_bad_meta_urls_say_what_to_do(text: str, says: str) -> None:
    with pytest.raises(Invalid) as raised:
        parse_meta_url(text)
    assert says in str(raised.value)


@given(st.text(max_size=40), st.sampled_from(["", "rocksdb:///", "etcd://", "kv://"]))
def test_any_text_is_parsed_or_refused(text: str, scheme: str) -> None:
    with contextlib.suppress(Invalid):
        url = parse_meta_url(scheme + text)
        assert parse_meta_url(str(url)) == url


@pytest.mark.parametrize("path", ["/with space?", "/100%41#1", "/ü/[x]/a@b", "/a\nb\tc "])
def test_any_path_can_stand_in_a_url(path: str) -> None:
    assert parse_meta_url(str(RocksUrl(path))) == RocksUrl(path)


def test_credentials_are_refused_and_not_repeated() -> None:
    with pytest.raises(Invalid) as raised:
        parse_meta_url("etcd://user:secret@host:2379/cells")
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("url", [ETCD, REMOTE])
def test_a_store_of_a_later_release_is_refused(url: MetaUrl) -> None:
    async def main() -> None:
        offload = ThreadOffload()
        with pytest.raises(Invalid, match="later release"):
            await open_kv(url, ManualClock(), offload)
        await offload.close()

    with pytest.raises(Invalid, match="later release"):
        check_available(url)
    asyncio.run(main())


def test_a_url_opens_its_kind_of_store(tmp_path: Path) -> None:
    async def main() -> None:
        offload, clock = ThreadOffload(), ManualClock()
        assert isinstance(await open_kv(MemoryMetaUrl(), clock, offload), MemoryKVStore)
        url = RocksUrl(str(tmp_path / "meta"))
        store = await open_kv(url, clock, offload)
        assert isinstance(store, RocksKVStore)
        assert [Path(path).exists() for path in lock_paths(url)] == [True]
        await store.close()
        await offload.close()

    asyncio.run(main())


def test_only_a_remote_store_is_shared_between_processes() -> None:
    assert [is_shared(url) for url in (ETCD, REMOTE)] == [True, True]
    assert not is_shared(MemoryMetaUrl())
    assert not is_shared(RocksUrl("/data/meta"))
    assert lock_paths(ETCD) == []


def test_the_metadata_store_that_goes_with_an_object_store() -> None:
    assert not wiring.is_shared(None, "local:///data")
    assert not wiring.is_shared(None, "memory://")
    assert wiring.is_shared("etcd://a:2379", "s3://bucket")
    with pytest.raises(Invalid, match="etcd://host:port"):
        wiring.is_shared(None, "s3://bucket")
