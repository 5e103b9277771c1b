# SPDX-License-Identifier: Apache-2.0
"""The run's own certificate: agents know it by its hash from controller.json, so nobody has to sign it.

Made in a process of its own (`python -m supervisor.controller.certificate CERTIFICATE KEY`), so that the library that
makes it does not stay in the controller's memory.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    # `python -m` looks first in the working folder, where a script's modules may have names of Python's.
    sys.path.append(sys.path.pop(0))

import datetime
import hashlib
import os
import ssl
import subprocess
from pathlib import Path

from supervisor.controller.api import ControllerError

VALID_DAYS = 3650


def ensure_certificate(folder: Path) -> tuple[Path, Path]:
    """Paths of certificate and key below `folder`, made at the first call; raises ControllerError."""
    certificate, key = folder / "controller.crt", folder / "controller.key"
    if not (certificate.exists() and key.exists()):
        made = subprocess.run(
            [sys.executable, "-m", __name__, str(certificate), str(key)], capture_output=True, text=True, check=False
        )
        if made.returncode != 0:
            last = made.stderr.strip().splitlines()[-1:] or ["no message"]
            raise ControllerError(f"the certificate {certificate} could not be made: {last[0]}")
    return certificate, key


def certificate_sha256(certificate: Path) -> str:
    """Hex SHA-256 of the certificate in DER form, which is what a TLS peer sees."""
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(certificate.read_text())).hexdigest()


def make_certificate(certificate: Path, key: Path) -> None:
    """Write a self-signed P-256 certificate and its key (mode 0600), the certificate last."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "pretraining-supervisor")])
    now = datetime.datetime.now(datetime.timezone.utc)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=VALID_DAYS))
        .sign(private, hashes.SHA256())
    )
    pem = private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    descriptor = os.open(key, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(pem)
    scratch = certificate.with_suffix(".new")
    scratch.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    scratch.replace(certificate)


if __name__ == "__main__":
    make_certificate(Path(sys.argv[1]), Path(sys.argv[2]))
