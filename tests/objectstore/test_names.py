"""Keys, URLs and the cluster guard."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.errors import (
    Corrupt,
    ForeignCluster,
    Invalid,
    InvalidName,
    StoreUnavailable,
    UnsupportedVersion,
)
from streamlog.objectstore.cluster.guard import (
    ClusterFile,
    Lineage,
    claim,
    decode,
    encode,
    read_cluster,
)
from streamlog.objectstore.errors import already_exists
from streamlog.objectstore.interface import ObjectInfo
from streamlog.objectstore.keys import (
    CLUSTER_KEY,
    check_key,
    checkpoint_key,
    checkpoint_prefix,
    data_key,
    object_id,
)
from streamlog.objectstore.local.store import LocalObjectStore
from streamlog.objectstore.memory import MemoryObjectStore
from streamlog.objectstore.opening import open_store
from streamlog.objectstore.url import (
    LocalUrl,
    MemoryUrl,
    S3Url,
    parse_store_url,
)
from streamlog.runtime.buffers import Buffer
from streamlog.runtime.offload import ThreadOffload
from streamlog.testing.clocks import ManualClock
from streamlog.testing.store_conformance import BAD_KEYS

# keys


@given(st.integers(0, (1 << 64) - 1))
def test_an_object_id_and_its_key_are_one_to_one(number: int) -> None:
    key = data_key(number)
    assert check_key(key) == key
    assert object_id(key) == number


def test_data_keys_are_reversed_hex() -> None:
    assert data_key(0x1234) == "data/4321000000000000"
    for number in (-1, 1 << 64):
        with pytest.raises(InvalidName):
            data_key(number)


@pytest.mark.parametrize(
    "key", ["data/12", "data/432100000000000G", "checkpoint/1.2/0", "data/4321000000000000x", ""]
)
def test_other_keys_have_no_object_id(key: str) -> None:
    with pytest.raises(InvalidName):
        object_id(key)


def test_checkpoint_keys_sort_by_attempt_below_their_tenure() -> None:
    keys = [checkpoint_key("3.14", n) for n in (1, 2, 10, 300, 1 << 40)]
    assert keys == sorted(keys)
    assert all(key.startswith(checkpoint_prefix("3.14")) for key in keys)
    assert not keys[0].startswith(checkpoint_prefix("3.1"))
    with pytest.raises(InvalidName):
        checkpoint_key("../..", 1)


@given(st.text(max_size=60))
def test_no_text_makes_a_key_that_leaves_the_store(text: str) -> None:
    try:
        check_key(text)
    except InvalidName:
        return
    assert not text.startswith((".", "/"))
    assert all(part and part not in (".", "..") for part in text.split("/"))


@pytest.mark.parametrize("key", BAD_KEYS)
def test_bad_keys(key: str) -> None:
    with pytest.raises(InvalidName):
        check_key(key)


# URLs


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("memory://", MemoryUrl()),
        ("local:///data/objects", LocalUrl("/data/objects")),
        ("local:///data//x/../objects/", LocalUrl("/data/objects")),
        ("local:///with%20space%3F", LocalUrl("/with space?")),
        ("s3://bucket", S3Url("bucket")),
        (
            "s3://bucket/a/b/?endpoint=http://127.0.0.1:9000&region=eu-1&path_style=true"
            "&client=obstore",
            S3Url("bucket", "a/b", "http://127.0.0.1:9000", "eu-1", True, "obstore"),
        ),
    ],
)
def test_store_urls(text: str, expected: object) -> None:
    assert parse_store_url(text) == expected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "begins with a scheme"),
        ("/data/objects", "did you mean local:///data/objects?"),
        ("lokal:///x", "did you mean local://?"),
        ("LOCAL:///x", "did you mean local://?"),
        ("file:///x", "did you mean local://?"),
        ("s3a://b/x", "did you mean s3://?"),
        ("gopher://x", "there is no store scheme 'gopher'"),
        ("local://data/objects", "three slashes"),
        ("local:///", "the root folder"),
        ("local:///a%00b", "NUL"),
        ("local:///a?x=1", "no parameters"),
        ("memory://x", "nothing behind it"),
        ("s3:///prefix", "needs a bucket"),
        ("s3://bucket:9000/x", "needs a bucket"),
        ("s3://bucket?regoin=eu", "did you mean region?"),
        ("s3://bucket?region=a&region=b", "given twice"),
        ("s3://bucket?path_style=maybe", "true or false"),
        ("s3://bucket?client=curl", "boto3 or obstore"),
        ("s3://bucket#x", "after a #"),
        ("s3://bucket?endpoint=localhost:9000", "http://HOST:PORT"),
        ("s3://bucket?endpoint=http://h:x", "endpoint= is no URL"),
    ],
)
def test_bad_store_urls_say_what_to_do(text: str, says: str) -> None:
    with pytest.raises(Invalid) as raised:
        parse_store_url(text)
    assert says in str(raised.value)
    assert "local:///abs/path" in str(raised.value)


@pytest.mark.parametrize(
    "text",
    [
        "s3://key:secret@bucket/x",
        "s3://key@bucket",
        "lokal://k:secret@b",
        "s3://bucket?endpoint=http://key:secret@host",
    ],
)
def test_credentials_are_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(Invalid) as raised:
        parse_store_url(text)
    assert "secret" not in str(raised.value)


@given(st.text(max_size=40), st.sampled_from(["", "s3://", "local:///"]))
def test_any_text_is_parsed_or_refused(text: str, scheme: str) -> None:
    with contextlib.suppress(Invalid):
        url = parse_store_url(scheme + text)
        assert parse_store_url(str(url)) == url


@pytest.mark.parametrize("path", ["/with space?", "/100%41#1", "/ü/[x]/a@b", "/a\nb\tc "])
def test_any_path_can_stand_in_a_url(path: str) -> None:
    assert parse_store_url(str(LocalUrl(path))) == LocalUrl(path)


def test_a_url_opens_its_kind_of_store(tmp_path: Path) -> None:
    async def main() -> None:
        offload = ThreadOffload()
        clock = ManualClock()
        assert isinstance(await open_store(MemoryUrl(), offload, clock), MemoryObjectStore)
        url = LocalUrl(f"{tmp_path}/50% off?")
        local = await open_store(url, offload, clock)
        assert isinstance(local, LocalObjectStore)
        assert parse_store_url(local.url) == url
        await offload.close()

    asyncio.run(main())


# the cluster guard


def test_a_claim_that_left_nothing_is_none() -> None:
    class Forgetful(MemoryObjectStore):
        async def put(
            self, key: str, parts: Sequence[Buffer], *, if_absent: bool = False
        ) -> ObjectInfo:
            raise already_exists(key)

    async def main() -> None:
        with pytest.raises(StoreUnavailable, match="does not have it"):
            await claim(Forgetful(ManualClock()), "mine")

    asyncio.run(main())


def test_the_first_claim_wins_and_names_both() -> None:
    async def main() -> None:
        store = MemoryObjectStore(ManualClock())
        assert await read_cluster(store) is None
        results = await asyncio.gather(*(claim(store, "one") for _ in range(5)))
        assert set(results) == {ClusterFile("one")}
        assert await read_cluster(store) == ClusterFile("one")
        with pytest.raises(ForeignCluster) as raised:
            await claim(store, "two")
        assert (raised.value.store_cluster, raised.value.meta_cluster) == ("one", "two")
        assert "one" in str(raised.value)
        assert "two" in str(raised.value)

    asyncio.run(main())


def test_a_loser_of_the_race_is_told() -> None:
    """Another cluster writes between the look and the put."""

    class Racing(MemoryObjectStore):
        async def put(
            self, key: str, parts: Sequence[Buffer], *, if_absent: bool = False
        ) -> ObjectInfo:
            if not self._objects:
                await super().put(key, (encode(ClusterFile("first")),), if_absent=True)
            return await super().put(key, parts, if_absent=if_absent)

    async def main() -> None:
        with pytest.raises(ForeignCluster):
            await claim(Racing(ManualClock()), "second")

    asyncio.run(main())


def test_a_newer_format_is_refused() -> None:
    async def main() -> None:
        store = MemoryObjectStore(ManualClock())
        await store.put(CLUSTER_KEY, (b'{"cluster_id": "one", "format_version": 3}',))
        with pytest.raises(UnsupportedVersion) as raised:
            await claim(store, "one")
        assert (raised.value.found, raised.value.supported) == (3, 2)

    asyncio.run(main())


GOLDEN = Path(__file__).parent.parent / "golden"
LINEAGE = Lineage(3, bytes(range(16)).hex())


@pytest.mark.parametrize("version", [1, 2])
def test_golden_cluster_files(version: int) -> None:
    golden = (GOLDEN / f"cluster_v{version}.json").read_bytes()
    cluster = ClusterFile("one") if version == 1 else ClusterFile("one", LINEAGE)
    assert decode(golden) == cluster
    assert encode(cluster) == golden


@pytest.mark.parametrize("knows_deletions", [False, True])
def test_a_cluster_file_tells_whether_deletions_are_known(knows_deletions: bool) -> None:
    cluster = ClusterFile("one", replace(LINEAGE, knows_deletions=knows_deletions))
    assert decode(encode(cluster)) == cluster
    assert decode(encode(cluster)).lineage.knows_deletions is knows_deletions


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"7",
        b'{"cluster_id": "a"}',
        b'{"cluster_id": 7, "format_version": 1}',
        b'{"cluster_id": "a", "format_version": "1"}',
        b'{"cluster_id": "a/b", "format_version": 1}',
        b'{"cluster_id": "a", "format_version": 0}',
        b'{"cluster_id": "a", "format_version": 2}',
        b'{"cluster_id": "a", "format_version": 2, "lineage": 0, "lineage_id": "%s"}' % (b"0" * 32),
        b'{"cluster_id": "a", "format_version": 2, "lineage": true, "lineage_id": "%s"}'
        % (b"0" * 32),
        b'{"cluster_id": "a", "format_version": 2, "lineage": 1, "lineage_id": "x"}',
        b'{"cluster_id": "a", "format_version": 2, "lineage": 1, "lineage_id": "%s", '
        b'"knows_deletions": 0}' % (b"0" * 32),
        b'{"cluster_id": "a", "format_version": 2, "lineage": 1}',
        b"\xff\xfe",
    ],
)
def test_a_damaged_cluster_file_is_found(data: bytes) -> None:
    with pytest.raises(Corrupt) as raised:
        decode(data)
    assert raised.value.object_key == CLUSTER_KEY
    assert (raised.value.start, raised.value.end) == (0, len(data))


@pytest.mark.parametrize("cluster_id", ["", "a/b", "..", "a" * 65, "a b"])
def test_bad_cluster_ids(cluster_id: str) -> None:
    async def main() -> None:
        with pytest.raises(InvalidName):
            await claim(MemoryObjectStore(ManualClock()), cluster_id)

    asyncio.run(main())
