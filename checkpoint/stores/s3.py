# SPDX-License-Identifier: Apache-2.0
"""S3 through s3fs: conditional puts, parallel multipart uploads, and its errors told apart.

Credentials and endpoint come from where AWS' own tools look: environment (`AWS_ENDPOINT_URL` too), ~/.aws, or the
machine's role.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Iterable
from datetime import datetime, timezone
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import aiohttp
import s3fs
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    EndpointConnectionError,
    HTTPClientError,
    IncompleteReadError,
    NoCredentialsError,
)
from fsspec.asyn import sync
from fsspec.exceptions import FSTimeoutError

from checkpoint.stores.objects import AwayError

_PART_BYTES = 16 << 20
_MOST_PARTS = 10_000
"""S3's own limits are 5 MiB to 5 GiB a part and 10,000 parts (Amazon S3 user guide, multipart upload limits)."""
_PARTS_AT_ONCE = 4
_PART_PAUSES_S = (0.5, 2.0, 5.0)
_CONNECTIONS = 16
_CONNECT_S, _READ_S = 10, 60
_TRY_AGAIN_CODES = {"SlowDown", "RequestTimeout", "RequestTimeTooSkewed", "InternalError", "ServiceUnavailable"}
_TAKEN_CODES = {"PreconditionFailed", "ConditionalRequestConflict"}
_KEY_CODES = {"InvalidAccessKeyId", "SignatureDoesNotMatch", "AccessDenied", "ExpiredToken", "InvalidToken", "403"}
_FULL_CODES = {"QuotaExceeded", "XMinioStorageFull", "InsufficientStorage", "507"}
_FAILURES = (OSError, BotoCoreError, ClientError, aiohttp.ClientError, asyncio.TimeoutError, FSTimeoutError)
_NO_ANSWER = (HTTPClientError, EndpointConnectionError, IncompleteReadError)
"""Of botocore's own errors those that are about a connection; the others are about what it was told."""
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def _translated(
    method: Callable[Concatenate[S3Objects, Parameters], Result],
) -> Callable[Concatenate[S3Objects, Parameters], Result]:
    """Let every error come out as the OSError that `objects` speaks of."""

    @wraps(method)
    def told(self: S3Objects, /, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        try:
            return method(self, *args, **kwargs)
        except _FAILURES as error:
            raise translate(error, self.uri) from error

    return told


class S3Objects:
    """Objects below `s3://bucket/prefix`."""

    def __init__(self, filesystem: s3fs.S3FileSystem, uri: str) -> None:
        self._fs = filesystem
        self._uri = uri
        self._bucket, _, self._prefix = uri.partition("://")[2].strip("/").partition("/")

    @property
    def uri(self) -> str:
        return self._uri

    @_translated
    def folders(self) -> list[str]:
        return sorted(each["Prefix"].rstrip("/").rpartition("/")[2] for each in self._listed("", "CommonPrefixes"))

    @_translated
    def sizes(self, folder: str, start: str = "") -> dict[str, int]:
        found = self._listed(f"{folder}/{start}" if folder else start, "Contents")
        return {name: int(each["Size"]) for each in found if (name := each["Key"].rpartition("/")[2])}

    @_translated
    def size(self, key: str) -> int | None:
        try:
            return int(self._fs.call_s3("head_object", **self._named(key))["ContentLength"])
        except FileNotFoundError:
            return None

    @_translated
    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        named = self._named(key)
        payload: bytes = self._fs.cat_file(f"{named['Bucket']}/{named['Key']}", start=start or None, end=end)
        return payload

    @_translated
    def put(self, key: str, payload: bytes) -> None:
        self._fs.call_s3("put_object", Body=payload, **self._named(key))

    @_translated
    def put_new(self, key: str, payload: bytes) -> None:
        self._fs.call_s3("put_object", Body=payload, IfNoneMatch="*", **self._named(key))

    @_translated
    def put_large(self, key: str, payload: memoryview) -> None:
        if len(payload) <= _PART_BYTES:
            self._fs.call_s3("put_object", Body=bytes(payload), **self._named(key))
            return
        sync(self._fs.loop, self._upload, key, payload)

    @_translated
    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._fs.call_s3("delete_object", **self._named(key))

    @_translated
    def drop_unfinished(self, is_dead: Callable[[str, float], bool]) -> None:
        now = datetime.now(timezone.utc)
        where = f"{self._prefix}/" if self._prefix else ""
        more: dict[str, str] = {}
        is_truncated = True
        while is_truncated:
            page = self._fs.call_s3("list_multipart_uploads", Bucket=self._bucket, Prefix=where, **more)
            for each in page.get("Uploads", []):
                if is_dead(each["Key"].removeprefix(where), (now - each["Initiated"]).total_seconds()):
                    upload = {"Bucket": self._bucket, "Key": each["Key"], "UploadId": each["UploadId"]}
                    self._fs.call_s3("abort_multipart_upload", **upload)
            is_truncated = bool(page.get("IsTruncated"))
            more = {"KeyMarker": page.get("NextKeyMarker", ""), "UploadIdMarker": page.get("NextUploadIdMarker", "")}

    def _named(self, key: str) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": f"{self._prefix}/{key}" if self._prefix else key}

    def _listed(self, start: str, kind: str) -> list[dict[str, Any]]:
        """All entries of a kind whose keys, below our prefix, begin so and go on without a `/`."""
        where = f"{self._prefix}/{start}" if self._prefix else start
        found: list[dict[str, Any]] = []
        more: dict[str, str] = {}
        while True:
            page = self._fs.call_s3("list_objects_v2", Bucket=self._bucket, Prefix=where, Delimiter="/", **more)
            found += page.get(kind, [])
            if not page.get("IsTruncated"):
                return found
            more = {"ContinuationToken": page["NextContinuationToken"]}

    async def _try_part(self, **part: Any) -> dict[str, Any]:
        """Put one part, more than once if need be: what has gone up of a long upload is too much to send again."""
        for pause_s in (*_PART_PAUSES_S, None):
            try:
                sent: dict[str, Any] = await self._fs._call_s3("upload_part", **part)  # noqa: SLF001
            except _FAILURES as error:
                away = translate(error, self._uri)
                if pause_s is None or not isinstance(away, AwayError):
                    raise
                await asyncio.sleep(away.retry_after_s or pause_s)
            else:
                return sent
        raise AssertionError("the last try returns or raises")

    async def _upload(self, key: str, payload: memoryview) -> None:
        """Parts go up side by side; a part is copied only while it is under way."""
        named = self._named(key)
        length = max(_PART_BYTES, -(-len(payload) // _MOST_PARTS))
        begun = await self._fs._call_s3("create_multipart_upload", **named)  # noqa: SLF001 - s3fs' own awaitable
        upload = {**named, "UploadId": begun["UploadId"]}
        gate = asyncio.Semaphore(_PARTS_AT_ONCE)

        async def send(number: int, start: int) -> dict[str, Any]:
            async with gate:
                body = bytes(payload[start : start + length])
                sent = await self._try_part(Body=body, PartNumber=number, **upload)
                return {"PartNumber": number, "ETag": sent["ETag"]}

        sending = [asyncio.ensure_future(send(i + 1, at)) for i, at in enumerate(range(0, len(payload), length))]
        try:
            parts = await asyncio.gather(*sending)
            await self._fs._call_s3("complete_multipart_upload", MultipartUpload={"Parts": parts}, **upload)  # noqa: SLF001
        except BaseException:
            for each in sending:
                each.cancel()
            await asyncio.gather(*sending, return_exceptions=True)
            # Parts of an upload that is not ended are paid for and seen by nobody; a store that is away keeps them.
            abort = self._fs._call_s3("abort_multipart_upload", **upload)  # noqa: SLF001
            await asyncio.gather(abort, return_exceptions=True)
            raise


def open_s3(uri: str) -> S3Objects:
    """Open `s3://bucket/prefix`, without asking the store anything."""
    filesystem = s3fs.S3FileSystem(
        use_listings_cache=False,
        skip_instance_cache=True,
        config_kwargs={
            "connect_timeout": _CONNECT_S,
            "read_timeout": _READ_S,
            "max_pool_connections": _CONNECTIONS,
            "retries": {"total_max_attempts": 1, "mode": "standard"},
            # Our own checksum covers every byte, and is verified at every restore.
            "request_checksum_calculation": "when_required",
            "response_checksum_validation": "when_required",
        },
    )
    # Trying again is for `retrying`, which listens to what the store asks for.
    filesystem.retries = 1
    return S3Objects(filesystem, uri)


def translate(error: BaseException, uri: str) -> OSError:
    """The OSError that says what went wrong and what to do; `AwayError` for what may be right a moment later."""
    found = _client_error(error)
    if found is None:
        return _without_answer(error, uri)
    answer: dict[str, Any] = found.response.get("ResponseMetadata", {})
    status = int(answer.get("HTTPStatusCode", 0))
    code = str(found.response.get("Error", {}).get("Code", ""))
    why = f"{uri}: the store answered {status} {code}"
    if code in _TAKEN_CODES or status == 412:
        return FileExistsError(errno.EEXIST, f"{why}: the object is there already")
    if code == "NoSuchBucket":
        return FileNotFoundError(errno.ENOENT, f"{uri}: there is no such bucket; make it, or name another one")
    if code in _FULL_CODES or status == 507:
        return OSError(errno.ENOSPC, f"{why}: no space is left there")
    if code in _KEY_CODES or status in (401, 403):
        return PermissionError(errno.EACCES, f"{why}: see that the key is right and may read and write there")
    if status >= 500 or status == 429 or code in _TRY_AGAIN_CODES:
        return AwayError(f"{why}: {found}", _retry_after(answer.get("HTTPHeaders", {})))
    if status == 404 or isinstance(error, FileNotFoundError):
        return FileNotFoundError(errno.ENOENT, f"{why}")
    return OSError(errno.EIO, f"{why}: {found}")


def _without_answer(error: BaseException, uri: str) -> OSError:
    if isinstance(error, NoCredentialsError) or isinstance(error.__cause__, NoCredentialsError):
        return PermissionError(
            errno.EACCES, f"{uri}: there are no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or ~/.aws"
        )
    if isinstance(error, FileNotFoundError | FileExistsError | PermissionError):
        return error
    if isinstance(error, BotoCoreError) and not isinstance(error, _NO_ANSWER):
        return OSError(errno.EINVAL, f"{uri}: {error}; see the URI and AWS' settings")
    return AwayError(f"{uri}: the store does not answer ({type(error).__name__}: {error}); see AWS_ENDPOINT_URL")


def _client_error(error: BaseException | None) -> ClientError | None:
    """The store's own answer, which s3fs keeps as the cause."""
    while error is not None:
        if isinstance(error, ClientError):
            return error
        error = error.__cause__ or error.__context__
    return None


def _retry_after(headers: dict[str, str]) -> float | None:
    text = headers.get("retry-after", "")
    return float(text) if text.isdecimal() else None
