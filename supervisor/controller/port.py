# SPDX-License-Identifier: Apache-2.0
"""The controller's one port: agents bring reports and fetch orders, a person's command line gives orders and looks.

HTTPS with the run's own certificate and a token; both stand in controller.json, which only the run's user can read.
Every body is bounded, every answer is JSON, and nothing here decides: requests become calls of `PortClient`.
"""

from __future__ import annotations

import hmac
import json
import secrets
import socket
import ssl
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import parse_qs, urlsplit

from supervisor.agent import api as agent
from supervisor.controller.certificate import certificate_sha256, ensure_certificate
from supervisor.controller.run_folder import RunFolder, write_json
from supervisor.core.api import CodecError, decode, encode

LARGEST_BODY_BYTES = 8 * 2**20
LONGEST_WAIT_S = 60.0
POLL_S = 0.25
"""Longest time that closing the port takes; an idle look costs microseconds."""


class PortClient(Protocol):
    """Whoever the port speaks for; called from request threads."""

    def take_reports(self, node: str, batch: agent.ReportBatch, reports: tuple[agent.Report, ...]) -> None: ...

    def take_order(self, raw: dict[str, Any]) -> dict[str, Any]:
        """A person's order; the answer says what came of it. Raises CodecError for a malformed one."""

    def view(self) -> dict[str, Any]:
        """What `supervisor status` shows."""


class OrderQueues:
    """Orders by node, handed out by long poll; ids grow across controller restarts, so that an agent misses none."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._orders: dict[str, list[tuple[int, agent.Order]]] = {}
        self._next = int(time.time() * 1000)

    def put(self, node: str, order: agent.Order) -> None:
        """Add an order unless the very same one already waits; orders of older attempts are dropped."""
        attempt = getattr(order, "attempt", 0)
        with self._changed:
            kept = [
                (number, waiting)
                for number, waiting in self._orders.get(node, [])
                if getattr(waiting, "attempt", attempt) >= attempt and waiting != order
            ]
            self._orders[node] = [*kept, (self._next, order)]
            self._next += 1
            self._changed.notify_all()

    def forget(self, attempt: int) -> None:
        """The attempt is over, so nobody has to start or stop it any more."""
        with self._changed:
            for node, orders in self._orders.items():
                self._orders[node] = [o for o in orders if getattr(o[1], "attempt", attempt + 1) > attempt]

    def after(self, node: str, number: int, wait_s: float) -> list[dict[str, Any]]:
        """Orders with a larger id than `number`; waits up to `wait_s` seconds for one."""
        deadline = time.monotonic() + wait_s
        with self._changed:
            while True:
                newer = [(n, o) for n, o in self._orders.get(node, []) if n > number]
                remaining = deadline - time.monotonic()
                if newer or remaining <= 0:
                    return [{"id": n, "order": encode(o)} for n, o in newer]
                self._changed.wait(remaining)


class ControllerPort:
    """Serves from `start` to `close` on threads of its own."""

    def __init__(self, folder: RunFolder, orders: OrderQueues, client: PortClient, host: str = "127.0.0.1") -> None:
        self._orders = orders
        self._folder = folder
        self._client = client
        self._host = host
        self._token = secrets.token_urlsafe(32)
        self._server: _Server | None = None

    def start(self) -> None:
        """Listen on a free port and say where in controller.json; raises ControllerError or OSError."""
        certificate, key = ensure_certificate(self._folder.path)
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            tls.load_cert_chain(certificate, key)
        except ssl.SSLError:
            # Damaged: agents learn a new one from controller.json, as they learn a new address.
            certificate.unlink()
            tls.load_cert_chain(*ensure_certificate(self._folder.path))
        server = _Server((self._host, 0), tls, self._routes())
        server.token = self._token
        threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": POLL_S}, daemon=True, name="port"
        ).start()
        self._server = server
        self._announce(certificate, server.server_port)

    def _announce(self, certificate: Path, port: int) -> None:
        write_json(
            self._folder.controller,
            {
                "version": agent.PROTOCOL_VERSION,
                "address": f"{self._host}:{port}",
                "certificate_sha256": certificate_sha256(certificate),
                "token": self._token,
            },
        )

    def close(self) -> None:
        """Returns when nobody listens any more: a descriptor closed under a listening thread may be another's next."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
        self._folder.controller.unlink(missing_ok=True)

    def _routes(self) -> dict[tuple[str, str], Callable[[str, dict[str, str], dict[str, Any]], dict[str, Any]]]:
        return {
            ("POST", "reports"): self._reports,
            ("GET", "orders"): self._orders_of,
            ("POST", "person"): lambda _node, _query, body: self._client.take_order(body),
            ("GET", "view"): lambda _node, _query, _body: self._client.view(),
        }

    def _reports(self, node: str, _query: dict[str, str], body: dict[str, Any]) -> dict[str, Any]:
        batch = decode(agent.ReportBatch, body)
        if batch.version != agent.PROTOCOL_VERSION:
            raise CodecError(f"protocol version {batch.version}, this controller speaks {agent.PROTOCOL_VERSION}")
        if batch.node != node:
            raise CodecError(f"the batch of {batch.node} was sent to the path of {node}")
        self._client.take_reports(node, batch, tuple(agent.decode_report(raw) for raw in batch.reports))
        return {"acknowledged": batch.sequence}

    def _orders_of(self, node: str, query: dict[str, str], _body: dict[str, Any]) -> dict[str, Any]:
        wait_s = min(float(query.get("wait", "0")), LONGEST_WAIT_S)
        return {"orders": self._orders.after(node, int(query.get("after", "0")), wait_s)}


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 1024
    token = ""

    def __init__(self, address: tuple[str, int], tls: ssl.SSLContext, routes: dict[tuple[str, str], Any]) -> None:
        self.routes = routes
        self._tls = tls
        super().__init__(address, _Request)

    def get_request(self) -> tuple[socket.socket, Any]:
        """The handshake is left to the request's own thread, so that a silent caller keeps nobody waiting."""
        connection, address = super().get_request()
        connection.settimeout(LONGEST_WAIT_S + 30.0)
        return self._tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False), address

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A caller that hangs up or speaks no TLS is not worth a traceback."""


class _Request(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_GET(self) -> None:
        self._serve("GET")

    def do_POST(self) -> None:
        self._serve("POST")

    def _serve(self, method: str) -> None:
        body = self._body() if method == "POST" else {}
        given = self.headers.get("Authorization", "")
        if not hmac.compare_digest(given, f"Bearer {self.server.token}"):
            self._answer(403, {"error": "wrong token: read controller.json of the run folder again"})
            return
        url = urlsplit(self.path)
        parts = [part for part in url.path.split("/") if part]
        node = parts[2] if len(parts) == 4 and parts[:2] == ["v1", "nodes"] else ""
        route = self.server.routes.get((method, parts[-1] if parts else ""))
        if route is None or body is None:
            self._answer(404 if route is None else 413, {"error": f"no such thing: {method} {url.path}"})
            return
        query = {key: values[-1] for key, values in parse_qs(url.query).items()}
        try:
            answer = route(node, query, body)
        except ValueError as error:
            self._answer(400, {"error": str(error)})
            return
        self._answer(200, answer)

    def _body(self) -> dict[str, Any] | None:
        """The JSON object that was sent; None when it is too large or no object."""
        length = int(self.headers.get("Content-Length") or 0)
        if length > LARGEST_BODY_BYTES:
            self.close_connection = True
            return None
        try:
            value = json.loads(self.rfile.read(length) or b"{}")
        except ValueError:
            return None
        return value if isinstance(value, dict) else None

    def _answer(self, status: int, value: dict[str, Any]) -> None:
        content = json.dumps(value, separators=(",", ":")).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  (the base class names it so)
        """Requests are not worth a line each."""
