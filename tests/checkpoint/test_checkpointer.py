# SPDX-License-Identifier: Apache-2.0
"""Save and restore in one process, as a training script sees them."""

from __future__ import annotations

import logging
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.distributed.checkpoint.state_dict_loader import load as pytorch_load

from checkpoint import Checkpointer
from checkpoint.api import CheckpointError, CheckpointRef, StaleAttemptError, StateMismatchError, open_catalogue
from tests.checkpoint.foreign.layouts import megatron
from tests.checkpoint.training import events_of, flip, fresh_state, save_steps, train


def committed_steps(folder: Path) -> list[int]:
    return [each.step for each in open_catalogue(str(folder)).committed()]


def test_a_resumed_run_continues_bit_for_bit(tmp_path: Path) -> None:
    state = fresh_state(0)
    with Checkpointer(tmp_path, every=4) as checkpointer:
        assert checkpointer.restore(state) is None
        train(state, 4)
        checkpointer.save(4, state)
        expected = train(state, 4)
    resumed = fresh_state(1)
    with Checkpointer(tmp_path) as checkpointer:
        assert checkpointer.restore(resumed) == 4
    assert resumed["data"].position == 4 and resumed["notes"]["epoch"] == 4 and resumed["notes"]["empty"] == {}
    assert train(resumed, 4) == expected
    assert torch.equal(resumed["average"], state["average"])
    for mine, theirs in zip(resumed["model"].parameters(), state["model"].parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_the_state_is_saved_as_it_was_when_save_was_called(tmp_path: Path) -> None:
    tensor, notes = torch.zeros(1000), {"list": [1]}
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(1, {"tensor": tensor, "notes": notes})
        tensor += 1
        notes["list"].append(2)
    loaded: dict[str, Any] = {"tensor": torch.ones(1000), "notes": {"list": []}}
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.restore(loaded)
    assert loaded["tensor"].eq(0).all() and loaded["notes"] == {"list": [1]}


def test_numpys_random_state_is_kept_when_numpy_is_loaded(tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(1, {"x": 1})
        expected = (np.random.rand(), random.random(), torch.rand(1).item())
        checkpointer.restore({"x": 0})
        assert (np.random.rand(), random.random(), torch.rand(1).item()) == expected


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
def test_plain_pytorch_reads_the_checkpoint(tmp_path: Path) -> None:
    state = fresh_state(0)
    train(state, 3)
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(3, state)
    model = fresh_state(1)["model"]
    plain = {"model": model, "average": torch.zeros(3), "notes": {"epoch": 0}}
    pytorch_load(plain, checkpoint_id=tmp_path / "step-000000000003-a1")
    for mine, theirs in zip(model.state_dict().values(), state["model"].state_dict().values(), strict=True):
        assert torch.equal(mine, theirs)
    assert torch.equal(plain["average"], state["average"]) and plain["notes"] == {"epoch": 3}


def test_saves_are_due_at_multiples_of_every(tmp_path: Path) -> None:
    with Checkpointer(tmp_path, every=5) as checkpointer:
        assert [step for step in range(12) if checkpointer.due(step)] == [5, 10]


def test_only_the_newest_stay(tmp_path: Path) -> None:
    with Checkpointer(tmp_path, keep=2, keep_every=4) as checkpointer:
        for step in range(1, 8):
            checkpointer.save(step, {"x": step}, wait=True)
    assert committed_steps(tmp_path) == [4, 6, 7]


def test_the_same_step_is_saved_once(tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(1, {"x": 1})
        checkpointer.save(1, {"x": 2}, wait=True)
    state = {"x": 0}
    Checkpointer(tmp_path).restore(state)
    assert state == {"x": 1}


def test_a_damaged_checkpoint_is_set_aside_and_the_next_older_one_taken_aloud(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "store"
    expected = save_steps(folder, [1, 2, 3])
    flip(folder / "step-000000000003-a1" / "__0_0.distcp", 700)
    (folder / "step-000000000002-a1" / ".metadata").unlink()
    monkeypatch.setenv("CHECKPOINT_EVENTS", str(tmp_path / "events"))
    state = fresh_state(1)
    with caplog.at_level(logging.WARNING), Checkpointer(folder) as checkpointer:
        assert checkpointer.restore(state) == 1
    assert train(state, 2) == expected[1]
    assert {path.name for path in folder.glob("damaged-*")} == {
        "damaged-step-000000000003-a1",
        "damaged-step-000000000002-a1",
    }
    assert "damaged, trying the next older one step=3" in caplog.text
    (restored,) = [each for each in events_of(tmp_path / "events") if each["event"] == "restored"]
    assert restored["step"] == 1 and restored["checkpoint_attempt"] == 1
    assert [each["step"] for each in restored["set_aside"]] == [3, 2]
    assert ".metadata: is missing" in restored["set_aside"][1]["why"]


def test_no_whole_checkpoint_left_is_an_error_and_not_a_start_from_nothing(tmp_path: Path) -> None:
    save_steps(tmp_path, [1])
    flip(tmp_path / "step-000000000001-a1" / "manifest.json", 5)
    with pytest.raises(CheckpointError, match=r"no whole checkpoint is left.*CHECKPOINT_RESUME=none"):
        Checkpointer(tmp_path).restore(fresh_state(1))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    with Checkpointer(folder) as checkpointer:
        checkpointer.save(1, {"weights": torch.arange(500.0), "x": 1})
    return folder


@given(st.data())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_changed_byte_anywhere_is_found(saved: Path, data: st.DataObject) -> None:
    files = sorted((saved / "step-000000000001-a1").iterdir())
    assert [path.name for path in files] == [".metadata", "__0_0.distcp", "manifest.json", "structure.json"]
    path = data.draw(st.sampled_from(files))
    offset = data.draw(st.integers(0, path.stat().st_size - 1))
    mask = data.draw(st.integers(1, 255))
    flip(path, offset, mask)
    damage = open_catalogue(str(saved)).verify(CheckpointRef(1, 1))
    flip(path, offset, mask)
    assert [each.name for each in damage] == [path.name]
    assert open_catalogue(str(saved)).verify(CheckpointRef(1, 1)) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.update(model=torch.nn.Linear(4, 6)), r"not in the checkpoint: model\.weight, model\.bias"),
        (
            lambda state: state.update(model=fresh_state(5, width=7)["model"]),
            r"model\.0\.weight was saved as .*\(6, 4\)",
        ),
        (lambda state: state.pop("average"), "1 not in the state: average"),
        (lambda state: state.update(more=torch.zeros(1)), "not in the checkpoint: more"),
        (lambda state: state["notes"].update(epoch=torch.zeros(1)), r"notes\.epoch is a tensor on one side only"),
        (lambda state: state["optimizer"].add_param_group({"params": [torch.zeros(1)]}), r"param_groups has \[6, 1\]"),
        (lambda state: state.update(average=torch.zeros(3, dtype=torch.float64)), "average was saved as torch.float32"),
    ],
)
def test_a_state_that_does_not_fit_is_named_and_left_as_it_was(tmp_path: Path, change: Any, message: str) -> None:
    save_steps(tmp_path, [2])
    state = fresh_state(3)
    change(state)
    before = [each.detach().clone() for each in state["model"].parameters()]
    random_before = torch.get_rng_state()
    with pytest.raises(StateMismatchError, match=message):
        Checkpointer(tmp_path).restore(state)
    assert all(torch.equal(a, b) for a, b in zip(before, state["model"].parameters(), strict=True))
    assert state["data"].position == 0 and torch.equal(torch.get_rng_state(), random_before)


def test_a_value_that_cannot_be_saved_is_named_at_once(tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        with pytest.raises(CheckpointError, match=r"notes\.call of type function cannot be pickled"):
            checkpointer.save(1, {"notes": {"call": lambda: None}})
        with pytest.raises(CheckpointError, match="sparse is a "):
            checkpointer.save(2, {"sparse": torch.zeros(2).to_sparse()})
        checkpointer.save(3, {"x": 1})
    assert committed_steps(tmp_path) == [3]


def test_the_named_checkpoint_is_restored_and_the_newer_ones_are_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = save_steps(tmp_path, [1, 2, 3])
    monkeypatch.setenv("CHECKPOINT_ATTEMPT", "2")
    monkeypatch.setenv("CHECKPOINT_RESUME", "2:1")
    state = fresh_state(1)
    with Checkpointer(tmp_path, keep=10) as checkpointer:
        assert checkpointer.restore(state) == 2
        assert train(state, 2) == expected[2]
        assert committed_steps(tmp_path) == [1, 2]
        checkpointer.save(4, state)
    assert committed_steps(tmp_path) == [1, 2, 4]


def test_a_named_checkpoint_that_is_gone_falls_back_to_an_older_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_steps(tmp_path, [1, 3])
    monkeypatch.setenv("CHECKPOINT_ATTEMPT", "2")
    monkeypatch.setenv("CHECKPOINT_RESUME", "2:1")
    assert Checkpointer(tmp_path).restore(fresh_state(1)) == 1


def test_a_start_from_nothing_can_be_ordered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_steps(tmp_path, [1])
    monkeypatch.setenv("CHECKPOINT_RESUME", "none")
    assert Checkpointer(tmp_path).restore(fresh_state(1)) is None
    assert committed_steps(tmp_path) == []


def test_an_older_attempt_is_turned_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHECKPOINT_ATTEMPT", "3")
    assert Checkpointer(tmp_path).attempt == 3
    assert Checkpointer(tmp_path).attempt == 3
    monkeypatch.setenv("CHECKPOINT_ATTEMPT", "2")
    with pytest.raises(StaleAttemptError, match=r"attempt 2, but the fence names attempt 3.*stop this process"):
        Checkpointer(tmp_path)


def test_another_fence_file_counts_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHECKPOINT_ATTEMPT", "2")
    Checkpointer(tmp_path / "other")
    monkeypatch.setenv("CHECKPOINT_ATTEMPT", "1")
    monkeypatch.setenv("CHECKPOINT_FENCE", str(tmp_path / "other" / "FENCE.json"))
    with pytest.raises(StaleAttemptError):
        Checkpointer(tmp_path / "store")


def test_a_late_commit_of_an_old_attempt_is_refused_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHECKPOINT_EVENTS", str(tmp_path / "events"))
    folder = tmp_path / "store"
    old = Checkpointer(folder)
    old.save(1, {"x": 1}, wait=True)
    new = Checkpointer(folder)
    old.save(2, {"x": 2}, wait=True)
    new.save(2, {"x": 20}, wait=True)
    assert [(each.step, each.attempt) for each in open_catalogue(str(folder)).committed()] == [(1, 1), (2, 2)]
    assert sorted(path.name for path in folder.glob("step-*")) == ["step-000000000001-a1", "step-000000000002-a2"]
    refused = [each for each in events_of(tmp_path / "events") if each["event"] == "commit_refused"]
    assert [(each["step"], each["attempt"]) for each in refused] == [(2, 1)]


def test_leftovers_of_older_attempts_are_swept_at_the_start(tmp_path: Path) -> None:
    save_steps(tmp_path, [1])
    for name in ("step-000000000002-a1.tmp", "deleted-step-000000000000-a1", "step-000000000009-a7.tmp", "mine"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_bytes(b"x")
    Checkpointer(tmp_path)
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {"step-000000000001-a1", "mine"}


def test_a_folder_of_another_programs_checkpoints_is_not_taken_over_unasked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    megatron(tmp_path, 1000, ranks=("00",))
    with pytest.raises(CheckpointError, match=r"holds checkpoints of megatron \(.*iter_0001000\).*a folder of its own"):
        Checkpointer(tmp_path)
    assert not (tmp_path / "FENCE.json").exists()
    monkeypatch.setenv("CHECKPOINT_RESUME", "none")
    assert Checkpointer(tmp_path).restore({"x": 1}) is None


class Notes:
    """A training client that only takes notes."""

    position = 7
    skipped = ((2, 4),)
    loss_healthy: bool | None = False
    should_stop = False

    def __init__(self) -> None:
        self.phases: list[str] = []

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self.phases.append(name)
        yield


def test_a_save_is_due_at_a_stop_request_whatever_the_interval(tmp_path: Path) -> None:
    notes = Notes()
    for every in (100, "10m", "auto"):
        with Checkpointer(tmp_path / str(every), every=every, run=notes) as checkpointer:
            notes.should_stop = False
            assert not checkpointer.due(3)
            notes.should_stop = True
            assert checkpointer.due(4)


def test_the_clients_notes_are_committed_and_its_phases_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHECKPOINT_EVENTS", str(tmp_path / "events"))
    notes = Notes()
    checkpointer = Checkpointer(tmp_path / "store", run=notes)
    checkpointer.restore({"x": 1})
    checkpointer.save(3, {"x": 1}, wait=True)
    assert set(notes.phases) == {"restore", "checkpoint"}
    (known,) = open_catalogue(str(tmp_path / "store")).committed()
    assert (known.position, known.skipped, known.healthy, known.world_size) == (7, ((2, 4),), False, 1)
    events = events_of(tmp_path / "events")
    assert [each["event"] for each in events] == ["opened", "restored", "save_started", "committed"]
    assert all(each["rank"] == 0 and each["attempt"] == 1 and each["at"] > 0 for each in events)
    assert events[0]["uri"] == str(tmp_path / "store") and events[1]["step"] is None
    last = events[-1]
    assert (last["step"], last["position"], last["healthy"], last["bytes"]) == (3, 7, False, known.bytes)
    assert last["stall_s"] >= 0 and last["seconds"] >= 0


def test_events_that_cannot_be_written_do_not_stop_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHECKPOINT_EVENTS", str(tmp_path / "nowhere" / "events"))
    with Checkpointer(tmp_path / "store") as checkpointer:
        checkpointer.save(1, {"x": 1})
    assert committed_steps(tmp_path / "store") == [1]


@pytest.mark.parametrize(
    ("name", "value"), [("CHECKPOINT_ATTEMPT", "two"), ("CHECKPOINT_RESUME", "newest"), ("WORLD_SIZE", "2")]
)
def test_an_environment_that_makes_no_sense_is_an_error_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    for other in ("TORCHELASTIC_RUN_ID", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv(name, value)
    with pytest.raises(CheckpointError, match=rf"{name}|{value} ranks have neither"):
        Checkpointer(tmp_path)


def test_the_control_plane_does_not_pay_for_torch() -> None:
    program = "import sys, checkpoint, checkpoint.api, checkpoint.__main__; assert 'torch' not in sys.modules"
    path = str(Path(__file__).parents[2])
    subprocess.run([sys.executable, "-c", program], check=True, env={**os.environ, "PYTHONPATH": path}, timeout=60)


class Versioned(torch.nn.Linear):
    """A module that, as PyTorch's own do, reads its state by the version that wrote it."""

    _version = 3
    seen: int | None = None

    def _load_from_state_dict(self, state_dict: Any, prefix: str, local_metadata: Any, *rest: Any) -> None:
        self.seen = local_metadata.get("version")
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *rest)


def test_a_module_learns_the_version_of_its_state(tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(1, {"model": Versioned(2, 2)})
        model = Versioned(2, 2)
        checkpointer.restore({"model": model})
    assert model.seen == 3
