# SPDX-License-Identifier: Apache-2.0
"""A loss on an accelerator is never waited for, steps keep their order, and what is given up is counted."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from supervisor.training.measured import WAITING_STEPS, StepLog
from supervisor.training.records import Record
from supervisor.training.ring import RingReader, RingWriter

NO_TIMES = (0.0, 0.0, 0.0, 0.0)


class Device:
    """Does queued work only when told, as a slow accelerator does."""

    def __init__(self) -> None:
        self.queued = 0
        self.done = 0
        self.is_broken = False

    def tensor(self, value: float) -> DeviceTensor:
        return DeviceTensor(self, value)

    def new_event(self) -> Event:
        return Event(self)


class Event:
    def __init__(self, device: Device) -> None:
        self.device = device
        self.mark = 0

    def record(self) -> None:
        self.device.queued += 1
        self.mark = self.device.queued

    def query(self) -> bool:
        if self.device.is_broken:
            raise RuntimeError("CUDA error: device-side assert triggered")
        return self.device.done >= self.mark


class HostCopy:
    """Pinned memory that the device has yet to fill."""

    def __init__(self, device: Device, value: float) -> None:
        self.device = device
        self.mark = device.queued + 1
        self.value = value

    def item(self) -> float:
        assert self.device.done >= self.mark, "read before the device wrote it"
        return self.value

    def __float__(self) -> float:
        return self.item()


class DeviceTensor:
    is_cuda = True

    def __init__(self, device: Device, value: float) -> None:
        self.device = device
        self.value = value

    def detach(self) -> DeviceTensor:
        return self

    def to(self, device: str, *, non_blocking: bool) -> HostCopy:
        assert device == "cpu" and non_blocking
        return HostCopy(self.device, self.value)

    def item(self) -> float:
        raise AssertionError("item() of a device tensor waits for the device")

    def __float__(self) -> float:
        return self.item()


class HostTensor:
    is_cuda = False

    def __init__(self, value: float) -> None:
        self.value = value

    def item(self) -> float:
        return self.value

    def __float__(self) -> float:
        raise AssertionError("float() of a tensor that requires a gradient warns")


class Logged:
    def __init__(self, folder: Path) -> None:
        path = folder / "rank-0.ring"
        self.log = StepLog(RingWriter(path, rank=0, local_rank=0, world_size=1, attempt=1))
        self.reader = RingReader(path)

    def add(self, step: int, loss: object, grad_norm: object = None) -> None:
        self.log.add(step, step - 1, (step, step), loss, grad_norm, 0, NO_TIMES)  # type: ignore[arg-type]

    def losses(self) -> list[tuple[int, float | None]]:
        return [(record.step, record.loss) for record in self.reader.poll()]


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    device = Device()
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=SimpleNamespace(Event=device.new_event)))
    return device


@pytest.fixture
def logged(tmp_path: Path) -> Logged:
    return Logged(tmp_path)


def test_numbers_and_host_tensors_are_written_at_once(logged: Logged) -> None:
    logged.add(1, 2.5)
    logged.add(2, 3)
    logged.add(3, HostTensor(0.5))
    assert logged.losses() == [(1, 2.5), (2, 3.0), (3, 0.5)]


def test_a_device_loss_is_written_once_the_device_has_it(logged: Logged, device: Device) -> None:
    logged.add(1, device.tensor(2.5))
    assert logged.losses() == []
    device.done = 1
    logged.add(2, device.tensor(2.25))
    assert logged.losses() == [(1, 2.5)]
    device.done = 2
    logged.log.write_ready()
    assert logged.losses() == [(2, 2.25)]


def test_a_norm_on_the_device_keeps_its_step_back_too(logged: Logged, device: Device) -> None:
    logged.add(1, HostTensor(1.0), device.tensor(0.5))
    device.done = 1
    logged.log.write_ready()
    (record,) = logged.reader.poll()
    assert (record.loss, record.grad_norm) == (1.0, 0.5)


def test_a_plain_loss_waits_behind_a_device_loss_with_the_value_it_had(logged: Logged, device: Device) -> None:
    running = HostTensor(7.0)
    logged.add(1, device.tensor(1.0))
    logged.add(2, running)
    running.value = 8.0
    assert logged.losses() == []
    device.done = 1
    logged.log.write_ready()
    assert logged.losses() == [(1, 1.0), (2, 7.0)]


def test_a_device_that_delivers_nothing_costs_values_not_steps(logged: Logged, device: Device) -> None:
    for step in range(1, WAITING_STEPS + 4):
        logged.add(step, device.tensor(1.0))
    assert logged.losses() == [(1, None), (2, None), (3, None)]
    assert logged.reader.activity().unmeasured == 3


def test_closing_writes_every_step_that_waits(logged: Logged, device: Device) -> None:
    logged.add(1, device.tensor(1.0))
    logged.add(2, device.tensor(2.0))
    logged.add(3, 3.0)
    device.done = 1
    logged.log.close()
    assert logged.losses() == [(1, 1.0), (2, None), (3, 3.0)]


def test_what_the_device_does_not_owe_is_kept_when_a_step_is_given_up(logged: Logged, device: Device) -> None:
    logged.add(1, HostTensor(1.5), device.tensor(0.5))
    logged.log.close()
    (record,) = logged.reader.poll()
    assert (record.loss, record.grad_norm) == (1.5, None)


def test_a_full_queue_gives_up_only_the_step_that_the_device_owes(logged: Logged, device: Device) -> None:
    logged.add(1, device.tensor(1.0))
    for step in range(2, WAITING_STEPS + 3):
        logged.add(step, float(step))
    records: list[Record] = logged.reader.poll()
    assert [(record.step, record.loss) for record in records[:3]] == [(1, None), (2, 2.0), (3, 3.0)]
    assert logged.reader.activity().unmeasured == 1


def test_a_broken_device_is_left_to_the_script_to_notice(logged: Logged, device: Device) -> None:
    logged.add(1, device.tensor(1.0))
    device.is_broken = True
    logged.log.write_ready()
    logged.log.close()
    assert logged.losses() == [(1, None)]
