"""ApiVersions (18): which APIs and versions this node serves; the first request of every client."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from streamlog.kafka.messages.api_versions_request import ApiVersionsRequest
from streamlog.kafka.messages.api_versions_response import ApiVersion, ApiVersionsResponse
from streamlog.kafka.protocol.apis import APIS, ApiKey
from streamlog.kafka.protocol.errors import KafkaError
from streamlog.server.kafka.call import Handle, KafkaCall

NAMED_FROM = 3
"""From this version on a client names its software, in Kafka's letters."""
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


class ApiVersionsHandler:
    """`served`: the APIs that have a handler."""

    def __init__(self, served: Iterable[ApiKey]) -> None:
        self._ranges = [_range(api) for api in sorted(served)]

    def routes(self) -> Mapping[ApiKey, Handle]:
        return {ApiKey.API_VERSIONS: self.api_versions}

    async def api_versions(
        self, call: KafkaCall, request: ApiVersionsRequest
    ) -> ApiVersionsResponse:
        if call.version >= NAMED_FROM and not _names_software(request):
            return ApiVersionsResponse(error_code=KafkaError.INVALID_REQUEST)
        # There are no features to finalize. The epoch is known all the same: clients take -1 as a
        # node that cannot say, and ask on.
        return ApiVersionsResponse(api_keys=self._ranges, finalized_features_epoch=0)


def unsupported_version() -> ApiVersionsResponse:
    """The answer, in version 0, to ApiVersions in a version that is not served.

    The client asks again with the highest version of the only range in it.
    """
    return ApiVersionsResponse(
        error_code=KafkaError.UNSUPPORTED_VERSION, api_keys=[_range(ApiKey.API_VERSIONS)]
    )


def _range(api: ApiKey) -> ApiVersion:
    served = APIS[api]
    return ApiVersion(api_key=api, min_version=served.advertised_first, max_version=served.last)


def _names_software(request: ApiVersionsRequest) -> bool:
    names = (request.client_software_name, request.client_software_version)
    return all(_SOFTWARE.fullmatch(name) for name in names)
