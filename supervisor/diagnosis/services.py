# SPDX-License-Identifier: Apache-2.0
"""Which outside service a connection error was about, by the client library that raised it."""

from __future__ import annotations

from supervisor.diagnosis.tracebacks import PythonError

_SERVICE_OF_PACKAGE = {
    "wandb": "wandb",
    "huggingface_hub": "huggingface",
    "datasets": "huggingface",
    "transformers": "huggingface",
    "mlflow": "metrics",
    "neptune": "metrics",
    "clearml": "metrics",
    "comet_ml": "metrics",
    "prometheus_client": "metrics",
    "boto3": "s3",
    "botocore": "s3",
    "s3fs": "s3",
}


def service_of(error: PythonError | None) -> str | None:
    """The service whose client library stands in the error's innermost frames; None when there is none."""
    if error is None:
        return None
    for frame in reversed(error.frames):
        for part in reversed(frame.file.split("/")):
            if part in _SERVICE_OF_PACKAGE:
                return _SERVICE_OF_PACKAGE[part]
    return None
