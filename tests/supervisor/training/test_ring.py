# SPDX-License-Identifier: Apache-2.0
"""A reader gets each whole record once and in order, or counts it as dropped, whatever the writer is doing."""

from __future__ import annotations

import itertools
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.training.records import RECORD_BYTES, Kind, Record, clipped, decoded
from supervisor.training.ring import CAPACITY, RingError, RingReader, RingWriter

NO_TIMES = (0.0, 0.0, 0.0, 0.0)


def made(folder: Path) -> tuple[RingWriter, RingReader]:
    path = folder / "rank-3.ring"
    writer = RingWriter(path, rank=3, local_rank=1, world_size=8, attempt=2)
    return writer, RingReader(path)


def write(writer: RingWriter, step: int, loss: float | None = None) -> None:
    writer.step(step, step - 1, (1000 + step, 2000 + step), loss, None, 64, NO_TIMES)


def test_the_header_says_who_writes(tmp_path: Path) -> None:
    _, reader = made(tmp_path)
    identity = reader.identity
    assert (identity.pid, identity.rank, identity.local_rank) == (os.getpid(), 3, 1)
    assert (identity.world_size, identity.attempt) == (8, 2)
    assert identity.started_wall_ns > 10**18


@pytest.mark.parametrize("loss", [2.5, math.inf, -math.inf, None])
def test_a_step_comes_back_as_it_was_written(tmp_path: Path, loss: float | None) -> None:
    writer, reader = made(tmp_path)
    writer.step(7, 9, (11, 12), loss, 0.75, 4096, (0.5, 1.5, 2.5, 3.5))
    (record,) = reader.poll()
    assert (record.kind, record.sequence, record.step, record.position) == (Kind.STEP, 1, 7, 9)
    assert (record.wall_ns, record.monotonic_ns, record.tokens) == (11, 12, 4096)
    assert record.loss == loss and record.grad_norm == 0.75
    times = record.times
    assert (times.data, times.evaluation, times.checkpoint, times.other) == (0.5, 1.5, 2.5, 3.5)


def test_a_loss_that_is_not_a_number_is_told_from_no_loss(tmp_path: Path) -> None:
    writer, reader = made(tmp_path)
    write(writer, 1, math.nan)
    write(writer, 2, None)
    bad, absent = reader.poll()
    assert bad.loss is not None and math.isnan(bad.loss) and absent.loss is None


@given(st.lists(st.integers(0, 3 * CAPACITY // 2), min_size=1, max_size=6))
@settings(max_examples=25, deadline=None)
def test_each_record_is_read_once_in_order_or_counted_as_dropped(bursts: list[int]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        writer, reader = made(Path(folder))
        steps: list[int] = []
        written = 0
        for burst in bursts:
            for step in range(written + 1, written + burst + 1):
                write(writer, step, float(step))
            written += burst
            dropped_before = reader.dropped
            got = reader.poll()
            assert all(record.loss == record.step == record.sequence for record in got)
            assert len(got) + reader.dropped - dropped_before == burst
            assert len(got) >= min(burst, CAPACITY - 1)
            steps += [record.step for record in got]
        assert steps == sorted(set(steps)) and len(steps) + reader.dropped == written


def test_a_reader_beside_a_running_writer_never_sees_a_torn_record(tmp_path: Path) -> None:
    writer, reader = made(tmp_path)
    total = 6 * CAPACITY

    def run() -> None:
        for step in range(1, total + 1):
            write(writer, step, float(step))

    thread = threading.Thread(target=run)
    thread.start()
    got: list[Record] = []
    while not got or got[-1].step < total:
        got += reader.poll()
    thread.join()
    assert all(record.loss == record.step == record.sequence for record in got)
    assert all(left.step < right.step for left, right in itertools.pairwise(got))
    assert len(got) + reader.dropped == total


def test_two_threads_that_write_lose_nothing(tmp_path: Path) -> None:
    writer, reader = made(tmp_path)

    def run() -> None:
        for _ in range(1000):
            writer.note(Kind.PHASE_ENTERED, 1)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [record.sequence for record in reader.poll()] == list(range(1, 2001))


@given(st.integers(0, RECORD_BYTES - 1), st.integers(1, 255))
@settings(max_examples=100)
def test_a_record_with_any_byte_changed_is_no_record(offset: int, change: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rank-3.ring"
        writer, reader = made(Path(folder))
        write(writer, 5, 1.25)
        with path.open("r+b") as file:
            file.seek(4096 + offset)
            byte = file.read(1)[0]
            file.seek(4096 + offset)
            file.write(bytes([byte ^ change]))
        assert reader.poll() == [] and reader.dropped == 0


def test_bytes_that_were_never_written_are_no_record() -> None:
    assert decoded(b"\0" * RECORD_BYTES) is None


def test_a_slot_that_a_killed_writer_left_half_overwritten_is_dropped(tmp_path: Path) -> None:
    writer, reader = made(tmp_path)
    for step in range(1, CAPACITY + 1):
        write(writer, step)
    with (tmp_path / "rank-3.ring").open("r+b") as file:
        file.seek(4096 + 20)
        file.write(b"torn")
    assert [record.step for record in reader.poll()] == list(range(2, CAPACITY + 1))
    assert reader.dropped == 1 and reader.poll() == []


def test_a_newer_record_in_the_slot_proves_an_overrun_before_the_count_is_visible(tmp_path: Path) -> None:
    writer, reader = made(tmp_path)
    for step in range(1, CAPACITY + 11):
        write(writer, step)
    with (tmp_path / "rank-3.ring").open("r+b") as file:
        file.seek(16 * 8)
        file.write((1).to_bytes(8, "little"))
    assert [record.step for record in reader.poll()] == list(range(11, CAPACITY + 11))
    assert reader.dropped == 10


KILLED_WRITER = """
import sys
from pathlib import Path
from supervisor.training.ring import RingWriter
writer = RingWriter(Path(sys.argv[1]), rank=0, local_rank=0, world_size=1, attempt=1)
step = 0
while True:
    step += 1
    writer.step(step, step - 1, (step, step), float(step), None, 0, (0.0, 0.0, 0.0, 0.0))
    writer.stand_at(step, step)
    if step == 10_000:
        print("ready", flush=True)
"""


def test_a_ring_whose_writer_was_killed_is_readable(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.ring"
    with subprocess.Popen([sys.executable, "-c", KILLED_WRITER, str(path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGKILL)
    reader = RingReader(path)
    got = reader.poll()
    assert len(got) >= CAPACITY - 1 and all(record.loss == record.step == record.sequence for record in got)
    assert got[-1].step >= 10_000 and abs(reader.activity().step - got[-1].step) <= 1


def test_phases_are_named_and_the_innermost_one_is_shown(tmp_path: Path) -> None:
    writer, reader = made(tmp_path)
    outer, inner = writer.phase_number("evaluation"), writer.phase_number("checkpoint")
    writer.enter(outer, 100)
    writer.enter(inner, 200)
    activity = reader.activity()
    assert (activity.phase, activity.phase_since_ns) == ("checkpoint", 200)
    writer.leave(outer, 100)
    activity = reader.activity()
    assert (activity.phase, activity.phase_since_ns) == ("evaluation", 100)
    writer.leave(0, 0)
    assert reader.activity().phase is None


def test_phase_names_beyond_the_table_share_one_name(tmp_path: Path) -> None:
    writer, reader = made(tmp_path)
    numbers = [writer.phase_number(f"phase {index}") for index in range(60)]
    assert [reader.phase_name(number) for number in numbers[:51]] == [f"phase {index}" for index in range(51)]
    assert {reader.phase_name(number) for number in numbers[51:]} == {"other"}
    with pytest.raises(ValueError, match="numbered 1 to 52"):
        reader.phase_name(0)


def test_the_live_words_show_step_and_sign_of_life(tmp_path: Path) -> None:
    writer, reader = made(tmp_path)
    writer.stand_at(41, 10**15)
    writer.unmeasured(3)
    activity = reader.activity()
    assert (activity.step, activity.last_ns, activity.unmeasured) == (41, 10**15, 3)
    writer.alive(10**15 + 1)
    assert reader.activity().last_ns == 10**15 + 1


def test_the_role_is_shown(tmp_path: Path) -> None:
    writer, reader = made(tmp_path)
    assert reader.role == ""
    writer.set_role("pipeline=0,tensor=3")
    assert reader.role == "pipeline=0,tensor=3"


def test_a_long_name_is_cut_between_characters() -> None:
    assert clipped("é" * 20, 5) == "éé".encode()


def test_a_ring_made_anew_is_noticed(tmp_path: Path) -> None:
    _, reader = made(tmp_path)
    assert reader.is_current()
    _, again = made(tmp_path)
    assert not reader.is_current() and again.is_current()
    (tmp_path / "rank-3.ring").unlink()
    assert not again.is_current()


def test_only_a_whole_ring_ever_has_the_name(tmp_path: Path) -> None:
    made(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["rank-3.ring"]


def test_the_space_is_allocated_before_it_is_mapped(tmp_path: Path) -> None:
    made(tmp_path)
    status = (tmp_path / "rank-3.ring").stat()
    assert status.st_blocks * 512 >= status.st_size


@pytest.mark.parametrize("content", [b"", b"short", b"\0" * 500_000])
def test_another_file_is_no_ring(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "rank-0.ring"
    path.write_bytes(content)
    with pytest.raises(RingError, match=r"rank-0\.ring is (empty|no ring)"):
        RingReader(path)


def test_both_ends_can_be_closed(tmp_path: Path) -> None:
    writer, reader = made(tmp_path)
    writer.close()
    reader.close()
    assert RingReader(tmp_path / "rank-3.ring").poll() == []
