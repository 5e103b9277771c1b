# SPDX-License-Identifier: Apache-2.0
"""A real S3 server keeps the stores' contract; its refusals come out as errors that say what to do."""

from __future__ import annotations

import subprocess
import sys
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from checkpoint.api import CheckpointRef, Fence, Store
from checkpoint.catalogue import Catalogue
from checkpoint.lineage import folder_of
from checkpoint.stores import open_store
from checkpoint.stores.s3 import open_s3
from tests.checkpoint.store_contract import StoreContract
from tests.system.services.s3 import S3Server

pytestmark = [pytest.mark.system, pytest.mark.timeout(400)]
_REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def uri(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    return f"s3://bucket/{uuid.uuid4().hex}"


class TestS3(StoreContract):
    @pytest.fixture
    def store(self, uri: str) -> Store:
        return open_store(uri)


def listed(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "checkpoint", *arguments], cwd=_REPOSITORY, capture_output=True, text=True, timeout=120
    )


def test_a_bucket_that_is_not_there_is_named(uri: str) -> None:
    ended = listed("ls", "s3://no-such-bucket/run")
    assert ended.returncode == 2 and "no such bucket" in ended.stderr and "no-such-bucket" in ended.stderr


def test_a_bucket_that_cannot_be_one_is_no_outage(uri: str) -> None:
    began = time.monotonic()
    ended = listed("ls", "s3://no_such bucket!/run")
    assert ended.returncode == 2 and "no_such bucket!" in ended.stderr and "does not answer" not in ended.stderr
    assert time.monotonic() - began < 50


def test_a_wrong_key_is_told_and_no_secret_is_shown(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-the-secret")
    ended = listed("ls", uri)
    assert ended.returncode == 2 and "see that the key is right" in ended.stderr
    assert "not-the-secret" not in ended.stderr + ended.stdout


def test_no_key_at_all_is_told(uri: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    ended = listed("ls", uri)
    assert ended.returncode == 2 and ("credentials" in ended.stderr or "key is right" in ended.stderr)


def test_verify_reads_every_byte_of_what_lies_there(uri: str) -> None:
    StoreContract().test_a_training_is_saved_restored_pruned_and_set_aside_in_it(open_store(uri))
    ended = listed("verify", uri)
    assert ended.returncode == 0 and "step-000000000002-a1: whole" in ended.stdout
    shown = listed("ls", uri)
    assert "s3" in shown.stdout and "set aside" in shown.stdout


def begin_upload(uri: str, key: str) -> str:
    objects = open_s3(uri)
    named = {"Bucket": "bucket", "Key": f"{uri.removeprefix('s3://bucket/')}/{key}"}
    begun: str = objects._fs.call_s3("create_multipart_upload", **named)["UploadId"]
    objects._fs.call_s3("upload_part", Body=b"x" * 100, PartNumber=1, UploadId=begun, **named)
    return begun


def uploads(uri: str) -> list[str]:
    page = open_s3(uri)._fs.call_s3("list_multipart_uploads", Bucket="bucket", Prefix=uri.removeprefix("s3://bucket/"))
    return [each["UploadId"] for each in page.get("Uploads", [])]


def test_an_upload_that_is_told_dead_by_its_age_is_dropped_and_a_young_one_is_not(uri: str) -> None:
    begun = begin_upload(uri, "step/data")
    open_s3(uri).drop_unfinished(lambda key, age_s: key != "step/data" or age_s > 3600)
    assert uploads(uri) == [begun]
    open_s3(uri).drop_unfinished(lambda key, age_s: age_s > -60)
    assert uploads(uri) == []


def test_what_an_attempt_that_is_cut_off_has_begun_to_upload_is_dropped_at_the_next_start(uri: str) -> None:
    catalogue = Catalogue(open_store(uri))
    catalogue.write_fence(Fence(attempt=2, resume_step=None, controller="test"))
    begin_upload(uri, f"{folder_of(CheckpointRef(step=7, attempt=1))}/data.0")
    present = begin_upload(uri, f"{folder_of(CheckpointRef(step=7, attempt=2))}/data.0")
    catalogue.write_fence(Fence(attempt=3, resume_step=None, controller="test"))
    assert uploads(uri) == [present]


def test_a_folder_of_more_objects_than_one_answer_tells_is_listed_whole(uri: str) -> None:
    objects = open_s3(uri)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: objects.put(f"many/{number:05d}", b"x"), range(1_003)))
    assert objects.sizes("many") == {f"{number:05d}": 1 for number in range(1_003)}
    assert objects.sizes("many", start="0000") == {f"{number:05d}": 1 for number in range(10)}


def test_more_folders_than_one_answer_tells_are_listed_whole(uri: str) -> None:
    objects = open_s3(uri)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: objects.put(f"step-{number:05d}/manifest.json", b"x"), range(1_003)))
    assert objects.folders() == [f"step-{number:05d}" for number in range(1_003)]
