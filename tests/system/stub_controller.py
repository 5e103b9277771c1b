# SPDX-License-Identifier: Apache-2.0
"""A controller that only talks: it takes an agent's reports and gives it orders, by the real protocol."""

from __future__ import annotations

import datetime
import hashlib
import http.server
import json
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from supervisor.agent import api
from supervisor.core import codec

ReportT = TypeVar("ReportT")
DEADLINE_S = 90.0


def make_certificate(folder: Path) -> tuple[Path, str]:
    """A self-signed certificate with its key in one file, and its SHA-256."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "controller")])
    now = datetime.datetime.now(datetime.timezone.utc)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    path = folder / "stub-certificate.pem"
    path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + certificate.public_bytes(serialization.Encoding.PEM)
    )
    return path, hashlib.sha256(certificate.public_bytes(serialization.Encoding.DER)).hexdigest()


class StubController:
    """Open it to be there, close it to be away; what was reported stays."""

    def __init__(self, run_folder: Path, token: str = "secret") -> None:
        self.run_folder = run_folder
        self.token = token
        self.reports: list[tuple[float, api.Report]] = []
        self.batches: list[api.ReportBatch] = []
        self.refused = 0
        self._orders: list[tuple[int, Any]] = []
        self._seen: set[tuple[str, int]] = set()
        self._changed = threading.Condition()
        self._certificate, self._digest = make_certificate(run_folder)
        self._server: http.server.ThreadingHTTPServer | None = None
        self._connections: set[Any] = set()

    def open(self, *, digest: str | None = None) -> None:
        """Listen on a new port and say so in the run folder."""
        controller = self
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self._certificate)

        class Answers(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                self.request = context.wrap_socket(self.request, server_side=True)
                controller._connections.add(self.request)
                super().setup()

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                self._answer(lambda: controller._take(json.loads(body)))

            def do_GET(self) -> None:
                query = dict(part.split("=") for part in self.path.partition("?")[2].split("&"))
                self._answer(lambda: controller._give(int(query["after"]), float(query["wait"])))

            def _answer(self, make: Callable[[], Any]) -> None:
                allowed = self.headers["Authorization"] == f"Bearer {controller.token}"
                controller.refused += not allowed
                content = json.dumps(make() if allowed else {}).encode()
                self.send_response(200 if allowed else 401)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  (the base class calls it so)
                pass

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: Any, client_address: Any) -> None:
                pass

        self._server = Server(("127.0.0.1", 0), Answers)
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        (self.run_folder / api.CONTROLLER_FILE).write_text(
            json.dumps(
                {
                    "version": 1,
                    "address": f"127.0.0.1:{self._server.server_address[1]}",
                    "certificate_sha256": digest or self._digest,
                    "token": self.token,
                }
            )
        )

    def close(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
        for connection in self._connections:
            connection.close()
        self._connections.clear()
        with self._changed:
            self._changed.notify_all()

    def order(self, order: api.Order) -> None:
        with self._changed:
            self._orders.append((len(self._orders) + 1, codec.encode(order)))
            self._changed.notify_all()

    def forget_orders(self) -> None:
        with self._changed:
            self._orders.clear()

    def wait_for(
        self, kind: type[ReportT], accept: Callable[[ReportT], bool] = lambda _: True, *, timeout_s: float = DEADLINE_S
    ) -> ReportT:
        """The first report of the kind that is accepted, which may have come already."""
        until = time.monotonic() + timeout_s
        with self._changed:
            while True:
                for _, report in self.reports:
                    if isinstance(report, kind) and accept(report):
                        return report
                left = until - time.monotonic()
                assert left > 0, f"no {kind.__name__} within {timeout_s} s; got {self.kinds()}"
                self._changed.wait(left)

    def kinds(self) -> list[str]:
        """Names of the newest reports."""
        return [type(report).__name__ for _, report in self.reports][-20:]

    def all_of(self, kind: type[ReportT]) -> list[ReportT]:
        with self._changed:
            return [report for _, report in self.reports if isinstance(report, kind)]

    def _take(self, raw: dict[str, Any]) -> dict[str, Any]:
        batch = codec.decode(api.ReportBatch, raw)
        with self._changed:
            if (batch.agent, batch.sequence) not in self._seen:
                self._seen.add((batch.agent, batch.sequence))
                self.batches.append(batch)
                self.reports += [(time.time(), api.decode_report(each)) for each in batch.reports]
            self._changed.notify_all()
        return {"acknowledged": batch.sequence}

    def _give(self, after: int, wait_s: float) -> dict[str, Any]:
        def later() -> list[dict[str, Any]]:
            return [{"id": number, "order": order} for number, order in self._orders if number > after]

        with self._changed:
            self._changed.wait_for(lambda: later() or self._server is None, min(wait_s, 5.0))
            return {"orders": later()}
