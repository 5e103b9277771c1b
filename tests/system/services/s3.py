# SPDX-License-Identifier: Apache-2.0
"""A real S3 server (SeaweedFS) on this machine, for the tests that need one."""

from __future__ import annotations

import json
import random
import socket
import subprocess
import sys
import time
from pathlib import Path

KEY, SECRET = "test-key", "test-secret"
_SERVED_S = 90.0
_GRPC_OFFSET = 10_000
"""The server takes each of its ports, and that port plus this one."""


class S3Server:
    """Serves from a folder until it is closed. `environment` is what a client needs."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        config = folder / "s3.json"
        actions = ["Admin", "Read", "Write", "List", "Tagging"]
        identity = {"name": "test", "credentials": [{"accessKey": KEY, "secretKey": SECRET}], "actions": actions}
        config.write_text(json.dumps({"identities": [identity]}))
        master, volume, filer, port = _free_ports(4)
        program = Path(sys.executable).with_name("weed")
        command = [str(program), "server", f"-dir={folder}", "-ip=127.0.0.1", f"-master.port={master}"]
        command += [f"-volume.port={volume}", "-volume.max=50", "-master.volumeSizeLimitMB=1024"]
        command += ["-filer", f"-filer.port={filer}", "-s3", f"-s3.port={port}", f"-s3.config={config}"]
        command += ["-master.telemetry=false", "-s3.port.iceberg=0", "-s3.port.lance=0"]
        self._log = (folder / "server.log").open("wb")
        self._process = subprocess.Popen(command, stdout=self._log, stderr=self._log, cwd=folder)
        self.port = port
        self.endpoint = f"http://127.0.0.1:{port}"
        self.environment = {
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        self._folder = folder

    def make_bucket(self, name: str) -> str:
        """Make a bucket, in a process of its own so that no event loop starts here; returns its URI."""
        program = (
            "import s3fs, sys; fs = s3fs.S3FileSystem(skip_instance_cache=True);"
            "fs.mkdir(sys.argv[1]) if not fs.exists(sys.argv[1]) else None;"
            "fs.pipe_file(sys.argv[1] + '/.ready', b'x'); fs.rm_file(sys.argv[1] + '/.ready')"
        )
        ends = time.monotonic() + _SERVED_S
        while True:
            environment = {"PATH": "/usr/bin:/bin", **self.environment}
            command = [sys.executable, "-c", program, name]
            made = subprocess.run(command, env=environment, capture_output=True, text=True)
            if made.returncode == 0:
                return f"s3://{name}"
            log = (self._folder / "server.log").read_text(errors="replace")[-2000:]
            assert self._process.poll() is None and time.monotonic() < ends, made.stderr[-2000:] + log
            time.sleep(0.5)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._log.close()


def _free_ports(count: int) -> list[int]:
    found: list[int] = []
    while len(found) < count:
        port = random.randrange(20_000, 32_000)
        if all(_is_free(each) for each in (port, port + _GRPC_OFFSET)):
            found.append(port)
    return found


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
