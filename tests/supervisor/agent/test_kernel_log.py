# SPDX-License-Identifier: Apache-2.0
"""The kernel's messages since an attempt began are kept with local times; that there are none is said in one line."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from supervisor.agent import kernel_log
from supervisor.agent.kernel_log import KernelLogError, Message


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (
            "6,339,5140900,-;NVRM: Xid (PCI:0000:3d:00): 79\n SUBSYSTEM=pci\n",
            Message(5.1409, "NVRM: Xid (PCI:0000:3d:00): 79"),
        ),
        ("4,1,0,-,caller=T1;a; b\n", Message(0.0, "a; b")),
        ("garbage", None),
        ("1,2;x", None),
    ],
)
def test_records_of_the_device_are_parsed(record: str, message: Message | None) -> None:
    assert kernel_log.parse_record(record) == message


def test_only_messages_since_then_are_kept_with_the_local_time(tmp_path: Path) -> None:
    booted = time.time() - time.monotonic()
    now = time.monotonic()
    path = kernel_log.path_for(tmp_path, "n0")
    kernel_log.keep(path, booted + now - 10.0, lambda: [Message(now - 20.0, "old"), Message(now - 5.0, "new")])
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(booted + now - 5.0))
    assert path.name == "kernel-n0.log"
    [line] = path.read_text().splitlines()
    assert line.startswith(stamp[:16]) and line.endswith(" kernel: new")


def test_a_log_that_may_not_be_read_is_said_in_one_line(tmp_path: Path) -> None:
    def refuse() -> list[Message]:
        raise KernelLogError("/dev/kmsg: Operation not permitted")

    kernel_log.keep(tmp_path / "kernel.log", 0.0, refuse)
    text = (tmp_path / "kernel.log").read_text()
    assert text == "no kernel log of this node: /dev/kmsg: Operation not permitted\n"


def test_a_folder_that_is_gone_is_no_reason_to_fail(tmp_path: Path) -> None:
    kernel_log.keep(tmp_path / "gone" / "kernel.log", 0.0, list)


def test_without_the_device_dmesg_is_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(kernel_log, "DEVICE", tmp_path / "kmsg")
    fake = tmp_path / "dmesg"
    fake.write_text("#!/bin/sh\necho '[   12.500000] usb 1-1: new device'\necho continued\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    fake.write_text("#!/bin/sh\necho '[   12.500000] usb 1-1: new device'\necho continued\n")
    assert kernel_log.read_messages() == [Message(12.5, "usb 1-1: new device")]


def test_where_dmesg_fails_too_its_reason_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(kernel_log, "DEVICE", tmp_path / "kmsg")
    monkeypatch.setenv("PATH", str(tmp_path))
    fake = tmp_path / "dmesg"
    fake.write_text("#!/bin/sh\necho 'read kernel buffer failed: Operation not permitted' >&2\nexit 1\n")
    fake.chmod(0o755)
    with pytest.raises(KernelLogError, match=r"No such file or directory; dmesg: read kernel buffer failed"):
        kernel_log.read_messages()
