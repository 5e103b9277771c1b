# SPDX-License-Identifier: Apache-2.0
"""A real proxy before a real server, which refuses, cuts or slows down what it is told to."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from enum import Enum

_CHUNK_BYTES = 16 << 10
_CUT_AFTER_BYTES = 64 << 10
_SLOW_S = 0.02


class Mood(str, Enum):
    """What becomes of a connection that comes in now, and of those that are open."""

    WELL = "well"
    BUSY = "answers 503 SlowDown, and asks for a second"
    BROKEN = "answers 500"
    AWAY = "closes every connection at once"
    CUTTING = "closes a connection after so many bytes"
    SLOW = "passes little on at a time"


_ANSWERS = {Mood.BUSY: ("503 Slow Down", "SlowDown"), Mood.BROKEN: ("500 Internal Server Error", "InternalError")}


class Proxy:
    """Passes connections on to a port of this machine, in its present mood. `refused` counts what was not passed on."""

    def __init__(self, port: int) -> None:
        self._target = port
        self.mood = Mood.WELL
        self.refused = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._run, name="proxy", daemon=True).start()

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _run(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), name="proxy-client", daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError):
            if self.mood is Mood.AWAY:
                self.refused += 1
                return
            if self.mood in _ANSWERS:
                self._answer(client)
                return
            with socket.create_connection(("127.0.0.1", self._target)) as server:
                back = threading.Thread(target=self._pass_on, args=(server, client), daemon=True)
                back.start()
                self._pass_on(client, server)
                back.join()

    def _answer(self, client: socket.socket) -> None:
        """Refuse one request, whose body is read as far as it comes."""
        self.refused += 1
        status, code = _ANSWERS[self.mood]
        client.settimeout(0.2)
        with suppress(TimeoutError):
            while client.recv(_CHUNK_BYTES):
                pass
        body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>by the proxy</Message></Error>"
        head = f"HTTP/1.1 {status}\r\nRetry-After: 1\r\nContent-Type: application/xml\r\nConnection: close\r\n"
        client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        passed = 0
        with suppress(OSError):
            while payload := source.recv(_CHUNK_BYTES):
                passed += len(payload)
                if self.mood is Mood.SLOW:
                    time.sleep(_SLOW_S)
                is_over = self.mood not in (Mood.WELL, Mood.SLOW, Mood.CUTTING)
                if is_over or (self.mood is Mood.CUTTING and passed > _CUT_AFTER_BYTES):
                    self.refused += 1
                    break
                target.sendall(payload)
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
