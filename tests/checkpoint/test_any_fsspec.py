# SPDX-License-Identifier: Apache-2.0
"""What other file systems of fsspec raise comes out as the few errors that the store speaks of."""

from __future__ import annotations

import asyncio
import errno
import logging
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import aiohttp
import fsspec
import pytest
from fsspec.exceptions import FSTimeoutError
from fsspec.implementations.memory import MemoryFileSystem

from checkpoint.stores.any_fsspec import FsspecObjects
from checkpoint.stores.objects import AwayError

_URI = "cloud://bucket/run"


class Failing(MemoryFileSystem):  # type: ignore[misc]  # fsspec has no types
    """A file system whose every request fails with one error."""

    cachable = False

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def cat_file(self, *_: Any, **__: Any) -> bytes:
        raise self.error


def raised_by(error: BaseException) -> OSError:
    try:
        FsspecObjects(Failing(error), "/run", _URI).get("key")
    except OSError as told:
        return told
    raise AssertionError(f"{error!r} was swallowed")


def plant(monkeypatch: pytest.MonkeyPatch, module: str, name: str, **notes: object) -> BaseException:
    """An error as a package raises it, with the package's module loaded."""
    kind = type(name, (Exception,), {})
    made = ModuleType(module)
    setattr(made, name, kind)
    monkeypatch.setitem(sys.modules, module, made)
    error: BaseException = kind("said the store")
    for key, value in notes.items():
        setattr(error, key, value)
    return error


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, PermissionError),
        (403, PermissionError),
        (404, FileNotFoundError),
        (412, FileExistsError),
        (429, AwayError),
        (500, AwayError),
        (503, AwayError),
    ],
)
@pytest.mark.parametrize(
    ("module", "name", "attribute"),
    [("gcsfs.retry", "HttpError", "code"), ("azure.core.exceptions", "AzureError", "status_code")],
)
def test_the_status_of_an_answer_tells_what_went_wrong(
    monkeypatch: pytest.MonkeyPatch, module: str, name: str, attribute: str, status: int, kind: type[OSError]
) -> None:
    error = raised_by(plant(monkeypatch, module, name, **{attribute: status}))
    assert type(error) is kind and _URI in str(error) and "said the store" in str(error)


def test_a_full_store_is_no_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    assert raised_by(plant(monkeypatch, "gcsfs.retry", "HttpError", code="507")).errno == errno.ENOSPC


def test_a_request_that_will_never_do_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    for error in (
        plant(monkeypatch, "gcsfs.retry", "HttpError", code=400),
        ValueError("Bad Request"),
        RuntimeError("no"),
    ):
        assert type(raised_by(error)) is OSError


def test_how_long_the_store_wants_to_be_left_alone_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = SimpleNamespace(status_code=503, headers={"Retry-After": "7"})
    error = raised_by(plant(monkeypatch, "azure.core.exceptions", "AzureError", response=answer))
    assert isinstance(error, AwayError) and error.retry_after_s == 7


@pytest.mark.parametrize(
    "error",
    [
        aiohttp.ServerDisconnectedError(),
        aiohttp.ClientPayloadError("cut"),
        FSTimeoutError(),
        asyncio.TimeoutError(),
        ConnectionResetError(errno.ECONNRESET, "reset"),
    ],
)
def test_a_lost_connection_is_tried_again(error: BaseException) -> None:
    assert isinstance(raised_by(error), AwayError)


def test_a_lost_connection_of_requests_is_tried_again_though_it_is_an_oserror(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = type("RequestException", (OSError,), {})
    monkeypatch.setitem(sys.modules, "requests", SimpleNamespace(RequestException=kind))
    assert isinstance(raised_by(kind("cut")), AwayError)


def test_missing_credentials_are_no_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    error = plant(monkeypatch, "google.auth.exceptions", "DefaultCredentialsError")
    monkeypatch.setattr(sys.modules["google.auth.exceptions"], "GoogleAuthError", type(error), raising=False)
    assert isinstance(raised_by(error), PermissionError)


def test_an_error_of_the_file_system_itself_stays_as_it_is() -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    assert raised_by(full) is full


def test_what_nobody_knows_is_hidden_by_nothing() -> None:
    with pytest.raises(ZeroDivisionError):
        FsspecObjects(Failing(ZeroDivisionError()), "/run", _URI).get("key")


def test_an_object_is_created_once_where_the_store_can_tell(caplog: pytest.LogCaptureFixture) -> None:
    objects = FsspecObjects(fsspec.filesystem("memory"), "/created-once", "memory://created-once")
    objects.put_new("key", b"first")
    with pytest.raises(FileExistsError, match="memory://created-once/key is there already"):
        objects.put_new("key", b"second")
    assert objects.get("key") == b"first" and not caplog.records


def test_a_store_that_cannot_tell_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    class Plain(MemoryFileSystem):  # type: ignore[misc]  # fsspec has no types
        protocol = "plain"
        cachable = False

        def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
            assert mode == "overwrite"
            super().pipe_file(path, value)

    objects = FsspecObjects(Plain(), "/looked-first", "plain://looked-first")
    with caplog.at_level(logging.WARNING):
        objects.put_new("key", b"first")
        objects.put_new("other", b"first")
        with pytest.raises(FileExistsError):
            objects.put_new("key", b"second")
    assert objects.get("key") == b"first" and caplog.text.count("no conditional put here") == 1
