# SPDX-License-Identifier: Apache-2.0
"""The agent's line to the controller: one thread posts reports, one waits for orders.

The controller is known by the run's `controller.json` alone. Its certificate is self-signed and is checked by its hash,
before the token is sent. A controller that is away costs nothing but retries; the file is read again for each, because
the controller may come back elsewhere.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import http.client
import json
import logging
import random
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from supervisor.agent.api import CONTROLLER_FILE, Order, Report, decode_order
from supervisor.agent.outbox import Outbox
from supervisor.core import codec

_log = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 2.0
_REQUEST_S = 10.0
_LONG_POLL_S = 20
_MAX_ANSWER_BYTES = 16 << 20
_FILE_VERSION = 1


class LinkError(Exception):
    """The controller cannot be reached now; the message says why."""


@dataclass(frozen=True, slots=True)
class ControllerAddress:
    host: str
    port: int
    certificate_sha256: str
    token: str


def read_address(run_folder: Path) -> ControllerAddress:
    """What `controller.json` says. Raises LinkError."""
    path = run_folder / CONTROLLER_FILE
    try:
        raw = json.loads(path.read_text())
        if raw["version"] != _FILE_VERSION:
            raise LinkError(f"{path} is of version {raw['version']}, this agent knows {_FILE_VERSION}")
        host, _, port = str(raw["address"]).rpartition(":")
        digest = str(raw["certificate_sha256"]).lower().replace(":", "")
        return ControllerAddress(host.strip("[]"), int(port), digest, str(raw["token"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LinkError(f"{path} names no controller: {error}") from error


class _PinnedConnection(http.client.HTTPSConnection):
    """Speaks only to the holder of one certificate."""

    def __init__(self, address: ControllerAddress, timeout_s: float) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        super().__init__(address.host, address.port, timeout=timeout_s, context=context)
        self._expected = address.certificate_sha256

    def connect(self) -> None:
        super().connect()
        certificate = self.sock.getpeercert(binary_form=True) or b""
        if not hmac.compare_digest(hashlib.sha256(certificate).hexdigest(), self._expected):
            self.close()
            raise LinkError(f"{self.host}:{self.port} shows another certificate than {CONTROLLER_FILE} names")


class Session:
    """One keep-alive connection; used by one thread. Any failure closes it, and the next request starts anew."""

    def __init__(self, run_folder: Path, timeout_s: float) -> None:
        self._run_folder = run_folder
        self._timeout_s = timeout_s
        self._connection: _PinnedConnection | None = None
        self._token = ""

    @property
    def is_open(self) -> bool:
        return self._connection is not None

    def request(self, method: str, path: str, body: object = None) -> Any:
        """The JSON answer. Raises LinkError."""
        content = None if body is None else json.dumps(body, separators=(",", ":")).encode()
        try:
            connection = self._connected()
            headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
            connection.request(method, path, body=content, headers=headers)
            response = connection.getresponse()
            content = response.read(_MAX_ANSWER_BYTES)
            return _content(response.status, content)
        except LinkError:
            self.close()
            raise
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.close()
            raise LinkError(f"{type(error).__name__}: {error}") from error

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connected(self) -> _PinnedConnection:
        if self._connection is None:
            address = read_address(self._run_folder)
            connection = _PinnedConnection(address, self._timeout_s)
            connection.connect()
            self._connection, self._token = connection, address.token
        return self._connection


def pause_s(failures: int, jitter: float) -> float:
    """Before the next try: doubles from 0.1 s to 2 s, less up to half of it by `jitter` (0 to 1)."""
    longest: float = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(failures - 1, 10))
    return longest * (1.0 - 0.5 * jitter)


class Link:
    """Starts the two threads; what arrives is handed to the callbacks, on those threads."""

    def __init__(
        self,
        run_folder: Path,
        node: str,
        outbox: Outbox,
        *,
        on_order: Callable[[Order], None],
        on_acknowledged: Callable[[tuple[Report, ...]], None],
    ) -> None:
        self._run_folder = run_folder
        self._path = f"/v1/nodes/{quote(node, safe='')}"
        self._outbox = outbox
        self._on_order = on_order
        self._on_acknowledged = on_acknowledged
        self._is_closing = threading.Event()
        self.heard_at = time.monotonic()
        """When the controller last answered, on the monotonic clock; at first when the agent began."""

    def start(self) -> None:
        for target, name in ((self._post_reports, "reports"), (self._take_orders, "orders")):
            threading.Thread(target=target, name=name, daemon=True).start()

    def close(self) -> None:
        """Let the threads end; one that waits for an answer is left behind."""
        self._is_closing.set()

    def _post_reports(self) -> None:
        session, trouble = Session(self._run_folder, _REQUEST_S), _Trouble("reports", self._is_closing)
        while not self._is_closing.is_set():
            batch = self._outbox.next_batch(1.0)
            if batch is None:
                continue
            try:
                answer = session.request("POST", f"{self._path}/reports", codec.encode(batch))
                told = self._outbox.acknowledge(_acknowledged(answer))
            except LinkError as error:
                trouble.wait(error)
                continue
            trouble.over()
            self.heard_at = time.monotonic()
            if told:
                self._on_acknowledged(told)
        session.close()

    def _take_orders(self) -> None:
        session, trouble = Session(self._run_folder, _LONG_POLL_S + _REQUEST_S), _Trouble("orders", self._is_closing)
        after = 0
        while not self._is_closing.is_set():
            if not session.is_open:
                # Another controller may answer now, and it counts its orders anew.
                after = 0
            try:
                answer = session.request("GET", f"{self._path}/orders?after={after}&wait={_LONG_POLL_S}")
                numbered = _orders(answer)
            except LinkError as error:
                trouble.wait(error)
                continue
            trouble.over()
            self.heard_at = time.monotonic()
            for number, raw in numbered:
                after = max(after, number)
                with contextlib.suppress(codec.CodecError):
                    self._on_order(_decoded(raw))
        session.close()


class _Trouble:
    """Waits between tries and tells a loss and its end once each."""

    def __init__(self, what: str, is_closing: threading.Event) -> None:
        self._what = what
        self._is_closing = is_closing
        self._failures = 0
        self._last = ""

    def wait(self, error: LinkError) -> None:
        self._failures += 1
        if str(error) != self._last:
            self._last = str(error)
            _log.warning("no controller for %s, trying again: %s", self._what, error)
        self._is_closing.wait(pause_s(self._failures, random.random()))

    def over(self) -> None:
        if self._failures:
            _log.info("controller is back for %s after %d tries", self._what, self._failures)
        self._failures, self._last = 0, ""


def _content(status: int, content: bytes) -> Any:
    if status != http.client.OK:
        raise LinkError(f"the controller answered with {status}: {content[:200]!r}")
    return json.loads(content)


def _acknowledged(answer: object) -> int:
    if isinstance(answer, dict) and isinstance(answer.get("acknowledged"), int):
        return int(answer["acknowledged"])
    raise LinkError(f"the controller acknowledged nothing: {answer!r}"[:200])


def _orders(answer: object) -> list[tuple[int, object]]:
    try:
        return [(int(each["id"]), each["order"]) for each in answer["orders"]]  # type: ignore[index]
    except (KeyError, TypeError, ValueError) as error:
        raise LinkError(f"the controller's orders cannot be read: {error}") from error


def _decoded(raw: object) -> Order:
    try:
        return decode_order(raw)
    except codec.CodecError as error:
        _log.error("an order was not understood and is left out: %s", error)
        raise
