"""The contract of a remote storage, over three services that fsspec reaches."""

from __future__ import annotations

import itertools
import json
import urllib.request
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from fsspec.core import url_to_fs

from streamlog.testing.tiers.storage_conformance import RemoteStorageManagerConformance
from streamlog.tiered.api.storage_manager import RemoteStorageManager
from streamlog.tiered.storage.fsspec_storage_manager import FsspecStorageManager
from tests.tiered.storage.services.processes import running_azurite, running_gcs, running_hdfs

AZURITE_ACCOUNT = "devstoreaccount1"
AZURITE_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
"""Published with Azurite, and the same everywhere."""
BUCKET = "tier"
PLACES = itertools.count()
"""Each plug-in of a test has an empty place of its own in the service."""


# adlfs and gcsfs hand a block to aiohttp as it is.
@pytest.mark.filterwarnings("ignore:Sending a large body directly:ResourceWarning")
class OverService(RemoteStorageManagerConformance):
    url: str
    options: dict[str, Any]

    @asynccontextmanager
    async def make(self) -> AsyncIterator[RemoteStorageManager]:
        self.place = f"{self.url}/{next(PLACES)}"
        storage = FsspecStorageManager()
        told = {f"storage_options.{name}": json.dumps(one) for name, one in self.options.items()}
        storage.configure({"url": self.place, **told})
        yield storage
        await storage.close()

    async def stored(self) -> Collection[str]:
        files, path = url_to_fs(self.place, **self.options)
        files.invalidate_cache()
        return sorted(files.find(path)) if files.exists(path) else []


class TestHdfs(OverService):
    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _service(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
        with running_hdfs(tmp_path_factory.mktemp("hdfs")) as address:
            cls.url, cls.options = f"webhdfs://{address}/tier", {"user": "root"}
            yield


class TestAzure(OverService):
    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _service(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
        with running_azurite(tmp_path_factory.mktemp("azure")) as address:
            cls.url = f"abfs://{BUCKET}"
            connection = (
                f"DefaultEndpointsProtocol=http;AccountName={AZURITE_ACCOUNT};"
                f"AccountKey={AZURITE_KEY};BlobEndpoint=http://{address}/{AZURITE_ACCOUNT};"
            )
            cls.options = {"connection_string": connection}
            url_to_fs(cls.url, **cls.options)[0].mkdir(BUCKET)
            yield


class TestGoogleCloudStorage(OverService):
    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _service(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
        with running_gcs(tmp_path_factory.mktemp("gcs")) as address:
            cls.url = f"gs://{BUCKET}"
            cls.options = {"endpoint_url": f"http://{address}", "token": "anon", "project": "p"}
            made = urllib.request.Request(
                f"http://{address}/storage/v1/b?project=p",
                json.dumps({"name": BUCKET}).encode(),
                {"Content-Type": "application/json"},
            )
            urllib.request.urlopen(made, timeout=30).close()
            yield
