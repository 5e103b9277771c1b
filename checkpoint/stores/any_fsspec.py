# SPDX-License-Identifier: Apache-2.0
"""Objects wherever fsspec reaches (Google's and Azure's stores, WebHDFS, SFTP, ...), with their errors told apart.

Each of these raises exceptions of its own. Which ones they are is looked up in the modules that are loaded, so none of
the packages is needed here.
"""

from __future__ import annotations

import asyncio
import errno
import inspect
import logging
import sys
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from checkpoint.stores.objects import AwayError

_log = logging.getLogger(__name__)
_OWN_ERRORS = {
    "aiohttp": "ClientError",
    "azure.core.exceptions": "AzureError",
    "gcsfs.retry": "HttpError",
    "google.auth.exceptions": "GoogleAuthError",
    "paramiko": "SSHException",
    "requests": "RequestException",
}
"""The base of what each package raises, by module; fsspec's own time-out is one of asyncio's."""
_OTHER_FAILURES = (OSError, asyncio.TimeoutError, ValueError, RuntimeError)
"""What they raise besides; a ValueError or RuntimeError of theirs is a request that will never do."""
_NO_KEY = {"AuthenticationException", "ClientAuthenticationError", "DefaultCredentialsError"}
_CREATING = {"gcs", "gs", "memory"}
"""Where fsspec's mode "create" is one conditional request, and not a look before an ordinary one."""
_BUSY = {408, 425, 429}
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def _failures() -> tuple[type[BaseException], ...]:
    loaded = [getattr(sys.modules.get(module), name, None) for module, name in _OWN_ERRORS.items()]
    return (*_OTHER_FAILURES, *(each for each in loaded if each is not None))


def _translated(
    method: Callable[Concatenate[FsspecObjects, Parameters], Result],
) -> Callable[Concatenate[FsspecObjects, Parameters], Result]:
    """Let every error come out as the OSError that `objects` speaks of."""

    @wraps(method)
    def told(self: FsspecObjects, /, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        try:
            return method(self, *args, **kwargs)
        except _failures() as error:
            raise translate(error, self.uri) from error

    return told


class FsspecObjects:
    """Any file system of fsspec. Where that cannot create an object conditionally, `put_new` looks and then puts."""

    def __init__(self, filesystem: Any, root: str, uri: str) -> None:
        self._fs = filesystem
        self._root = root.rstrip("/")
        self._uri = uri.rstrip("/")
        self._can_create = _can_create(filesystem)
        self._is_told = self._can_create

    @property
    def uri(self) -> str:
        return self._uri

    @_translated
    def folders(self) -> list[str]:
        try:
            found = self._fs.ls(self._root, detail=True, refresh=True)
        except FileNotFoundError:
            return []
        return sorted(each["name"].rstrip("/").rpartition("/")[2] for each in found if each["type"] == "directory")

    @_translated
    def sizes(self, folder: str, start: str = "") -> dict[str, int]:
        try:
            found = self._fs.ls(self._key(folder).rstrip("/"), detail=True, refresh=True)
        except FileNotFoundError:
            return {}
        sizes = {each["name"].rpartition("/")[2]: int(each["size"]) for each in found if each["type"] == "file"}
        return {name: size for name, size in sizes.items() if name.startswith(start)}

    @_translated
    def size(self, key: str) -> int | None:
        try:
            return int(self._fs.info(self._key(key), refresh=True)["size"])
        except FileNotFoundError:
            return None

    @_translated
    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        payload: bytes = self._fs.cat_file(self._key(key), start=start or None, end=end)
        return payload

    @_translated
    def put(self, key: str, payload: bytes) -> None:
        self._fs.pipe_file(self._key(key), payload)

    @_translated
    def put_new(self, key: str, payload: bytes) -> None:
        taken = FileExistsError(errno.EEXIST, f"{self._uri}/{key} is there already")
        if self._can_create:
            try:
                self._fs.pipe_file(self._key(key), payload, mode="create")
            except FileExistsError:
                raise taken from None
            return
        if not self._is_told:
            self._is_told = True
            _log.warning("no conditional put here, only the fence holds off a late writer uri=%s", self._uri)
        if self.size(key) is not None:
            raise taken
        self.put(key, payload)

    def put_large(self, key: str, payload: memoryview) -> None:
        self.put(key, bytes(payload))

    @_translated
    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            try:
                self._fs.rm_file(self._key(key))
            except FileNotFoundError:
                continue

    def drop_unfinished(self, is_dead: Callable[[str, float], bool]) -> None:
        """Nothing is put in parts here."""

    def _key(self, key: str) -> str:
        return f"{self._root}/{key}"


def translate(error: BaseException, uri: str) -> OSError:
    """The OSError that says what went wrong and what to do; `AwayError` for what may be right a moment later."""
    status = _status(error)
    why = f"{uri}: {type(error).__name__}: {error}"
    if status in (401, 403) or type(error).__name__ in _NO_KEY:
        return PermissionError(errno.EACCES, f"{why}; see that the credentials are right and may read and write there")
    if status is None:
        return _without_status(error, why)
    if status == 404:
        return FileNotFoundError(errno.ENOENT, why)
    if status == 412:
        return FileExistsError(errno.EEXIST, f"{why}; the object is there already")
    if status == 507:
        return OSError(errno.ENOSPC, f"{why}; no space is left there")
    if status >= 500 or status in _BUSY:
        return AwayError(why, _retry_after(error))
    return OSError(errno.EIO, why)


def _without_status(error: BaseException, why: str) -> OSError:
    if isinstance(error, ValueError | RuntimeError):
        return OSError(errno.EINVAL, f"{why}; see the URI and what fsspec needs for it")
    requests = sys.modules.get("requests")
    # What requests raises is an OSError whatever it is about, a lost connection mostly.
    is_request = requests is not None and isinstance(error, requests.RequestException)
    if isinstance(error, OSError) and not isinstance(error, ConnectionError | TimeoutError) and not is_request:
        return error
    return AwayError(f"{why}; the store does not answer")


def _can_create(filesystem: Any) -> bool:
    protocol = filesystem.protocol
    is_known = bool(_CREATING & ({protocol} if isinstance(protocol, str) else set(protocol)))
    method = getattr(filesystem, "_pipe_file", None) or filesystem.pipe_file
    return is_known and "mode" in inspect.signature(method).parameters


def _status(error: BaseException) -> int | None:
    """The HTTP status under the name that the package has for it; Google's may be text."""
    holders = (error, getattr(error, "response", None))
    for holder in holders:
        for name in ("status_code", "status", "code"):
            value = str(getattr(holder, name, ""))
            if value.isdecimal() and 400 <= int(value) < 600:
                return int(value)
    return None


def _retry_after(error: BaseException) -> float | None:
    for holder in (error, getattr(error, "response", None)):
        headers = getattr(holder, "headers", None) or {}
        text = str(headers.get("Retry-After") or headers.get("retry-after") or "")
        if text.isdecimal():
            return float(text)
    return None
