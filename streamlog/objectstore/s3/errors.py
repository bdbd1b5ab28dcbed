"""botocore's errors → streamlog's, each with what to do about it.

A failed write is StoreUnavailable where the store certainly did nothing (it was not reached, or it
refused before it began), and OutcomeUnknown otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from botocore import exceptions as boto

from streamlog.errors import (
    Internal,
    Invalid,
    OutcomeUnknown,
    StoreUnavailable,
    StreamlogError,
    Unauthorized,
    ValueConflict,
)
from streamlog.objectstore.errors import Misplaced, StoreRefused, not_found
from streamlog.objectstore.s3.requests import RangeNotSatisfiable
from streamlog.objectstore.s3.retry import WRITES
from streamlog.objectstore.url import S3Url

NOT_REACHED = (
    boto.EndpointConnectionError,
    boto.ConnectTimeoutError,
    boto.ProxyConnectionError,
)
NO_CREDENTIALS = (
    boto.NoCredentialsError,
    boto.PartialCredentialsError,
    boto.ProfileNotFound,
    boto.UnauthorizedSSOTokenError,
)
CREDENTIALS_LATE = (
    boto.CredentialRetrievalError,
    boto.MetadataRetrievalError,
    boto.TokenRetrievalError,
)
KEY_CODES = frozenset({"NoSuchKey", "NoSuchUpload"})
BAD_CREDENTIALS = frozenset(
    {
        "InvalidAccessKeyId",
        "SignatureDoesNotMatch",
        "InvalidToken",
        "ExpiredToken",
        "TokenRefreshRequired",
        "AuthFailure",
        "XAdminUserNotFound",
    }
)
WRONG_REGION = frozenset(
    {
        "AuthorizationHeaderMalformed",
        "PermanentRedirect",
        "IllegalLocationConstraintException",
        "301",
    }
)
NOTHING_DONE = frozenset(
    {
        "SlowDown",
        "ServiceUnavailable",
        "Throttling",
        "ThrottlingException",
        "RequestLimitExceeded",
        "TooManyRequests",
        "OperationAborted",
        "ConditionalRequestConflict",
        "RequestTimeout",
        "BadDigest",
        "IncompleteBody",
        "XAmzContentSHA256Mismatch",
        "XAmzContentChecksumMismatch",
        "KMS.ThrottlingException",
        "XMinioAdminBucketQuotaExceeded",
        "503",
        "429",
        "408",
    }
)
"""The store refused and may take the same request later."""
PERMANENT = frozenset({405, 411, 413, 414, 501})
"""Statuses that the same request always gets."""
PERMANENT_CODES = frozenset(
    {
        "EntityTooLarge",
        "EntityTooSmall",
        "KeyTooLongError",
        "InvalidURI",
        "MaxMessageLengthExceeded",
        "MetadataTooLarge",
        "MethodNotAllowed",
        "MissingContentLength",
        "NotImplemented",
    }
)
"""As PERMANENT. Each kind of store has its own errors, so that no list is complete: a request with
an unknown error is tried again."""
CLIENT_CLOSED = 499
"""A proxy saw the connection end before the answer."""


def typed(error: Exception, operation: str, key: str, url: S3Url) -> StreamlogError:
    """`key` is empty for requests without a key. An unknown error counts as a lost answer."""
    if isinstance(error, boto.ClientError):
        return refused(error.response, str(error), operation, key, url)
    if isinstance(error, NO_CREDENTIALS):
        return no_credentials(url, str(error))
    if isinstance(error, CREDENTIALS_LATE):
        return StoreUnavailable(
            f"no credentials for {url} at present: {error}; nothing was sent", operation=operation
        )
    if isinstance(error, NOT_REACHED):
        return StoreUnavailable(
            f"{where(url)} cannot be reached: {error}; is it up, and is endpoint= right?",
            operation=operation,
        )
    if isinstance(error, boto.ParamValidationError):
        return Internal(f"a {operation} request to {url} is not valid: {error}")
    return lost(operation, url, str(error))


def no_credentials(url: S3Url, reason: str) -> Unauthorized:
    """`reason` is what boto3 says."""
    return Unauthorized(
        f"no credentials for {url}: {reason}; boto3 looks for AWS_ACCESS_KEY_ID and "
        "AWS_SECRET_ACCESS_KEY, ~/.aws/credentials (AWS_PROFILE), then the machine's own role"
    )


def lost(operation: str, url: S3Url, reason: str) -> StreamlogError:
    """A request that went out and got no whole answer."""
    if operation in WRITES:
        return OutcomeUnknown(
            f"{where(url)} gave no answer to a {operation}: {reason}", operation=operation
        )
    return StoreUnavailable(f"{where(url)} failed a {operation}: {reason}", operation=operation)


def refused(
    response: Mapping[str, Any], text: str, operation: str, key: str, url: S3Url
) -> StreamlogError:
    """The store's answer was an error."""
    error = response.get("Error", {})
    code = str(error.get("Code", ""))
    status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    if code == "InvalidRange" or status == 416:
        return RangeNotSatisfiable(f"{key} ends before the range that was asked for")
    if code == "PreconditionFailed" or status == 412:
        return ValueConflict(f"a condition of the {operation} of {key} does not hold")
    if code == "NoSuchBucket":
        return Misplaced(
            f"there is no bucket {url.bucket} at {where(url)}: make it, or mend the store URL",
            operation=operation,
        )
    if code == "InvalidBucketName":
        return Misplaced(
            f"{where(url)} takes {url.bucket!r} for no name of a bucket: mend the store URL "
            "(s3://BUCKET/PREFIX)",
            operation=operation,
        )
    # Of a HEAD's answer there is no more than the status.
    if key and (code in KEY_CODES or (status == 404 and operation == "head")):
        return not_found(key)
    if code in NOTHING_DONE or status in (408, 429, 503):
        return StoreUnavailable(
            f"{where(url)} refused a {operation} for now: {text}", operation=operation
        )
    if code == "RequestTimeTooSkewed":
        return StoreUnavailable(
            f"this machine's clock differs too much from that of {where(url)}: set it (NTP)",
            operation=operation,
        )
    region = error.get("Region") or response.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get(
        "x-amz-bucket-region"
    )
    if code in WRONG_REGION:
        right = f"region={region}" if region else "the bucket's own region"
        return Misplaced(
            f"the region {url.region or '(default)'} is wrong for {url.bucket} at {where(url)}; "
            f"give {right} in the store URL. The store says: {text}",
            operation=operation,
        )
    if code in BAD_CREDENTIALS:
        return Unauthorized(
            f"{where(url)} does not accept the credentials that boto3 found ({code}): check "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or the profile or role in use",
            operation=operation,
        )
    if code == "AccessDenied" or status in (401, 403):
        return Unauthorized(
            f"{where(url)} does not allow a {operation} on {url}: the credentials need read, "
            "write, list and delete there",
            operation=operation,
            resource=key,
        )
    if (status >= 500 and status != 501) or status == CLIENT_CLOSED:
        return lost(operation, url, text)
    if (not code or code.isdigit()) and status not in PERMANENT:
        # A proxy without its server says this, too; of an object it says nothing.
        return StoreUnavailable(
            f"{where(url)} answered a {operation} with {status} and no S3 error: is that a proxy, "
            f"and is endpoint= right? It says: {text}",
            operation=operation,
        )
    kind = Invalid if status in PERMANENT or code in PERMANENT_CODES else StoreRefused
    return kind(f"{where(url)} refused a {operation}: {text}", operation=operation)


def where(url: S3Url) -> str:
    """The server, in words."""
    return f"the S3 endpoint {url.endpoint}" if url.endpoint else f"S3 ({url.region or 'AWS'})"
