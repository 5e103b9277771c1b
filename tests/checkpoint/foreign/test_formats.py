# SPDX-License-Identifier: Apache-2.0
"""Each format's newest whole step is found, and what makes a checkpoint partial is named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from checkpoint.foreign import Format
from tests.checkpoint.foreign.layouts import (
    catalogue,
    cut,
    dcp_folder,
    deepspeed,
    faults,
    hugging_face,
    megatron,
    megatron_dist,
    safetensors_file,
    torch_file,
    whole_steps,
)


def titan(root: Path, step: int) -> Path:
    return dcp_folder(root / f"step-{step}")


def plain(root: Path, step: int) -> Path:
    return dcp_folder(root / f"epoch=0-step={step}")


WRITERS: dict[str, tuple[Format, Callable[[Path, int], Path]]] = {
    "megatron": (Format.MEGATRON, megatron),
    "megatron dist": (Format.MEGATRON, megatron_dist),
    "deepspeed": (Format.DEEPSPEED, deepspeed),
    "hugging face": (Format.HUGGING_FACE, hugging_face),
    "torchtitan": (Format.TORCHTITAN, titan),
    "plain": (Format.DCP, plain),
}

UNNAMED = ("optimizer.pt", "scheduler.pt", "training_args.bin", "rng_state_1.pth", "metadata.json")
"""Files whose absence no other file of their format tells."""


@pytest.mark.parametrize("name", WRITERS)
def test_whole_checkpoints_are_found_by_step_whatever_their_names_sort_like(name: str, tmp_path: Path) -> None:
    kind, write = WRITERS[name]
    for step in (900, 1000):
        write(tmp_path, step)
    (tmp_path / "runs").mkdir()
    assert catalogue(tmp_path).format() is kind
    assert whole_steps(tmp_path) == [1000, 900]
    assert [each.step for each in catalogue(tmp_path).entries()] == [900, 1000]
    best, older = catalogue(tmp_path).best(), catalogue(tmp_path).best(before_step=1000)
    assert best is not None and older is not None
    assert (best.step, older.step) == (1000, 900) and Path(older.uri).is_dir() and older.bytes > 0


@pytest.mark.parametrize("name", WRITERS)
def test_a_checkpoint_without_any_one_of_its_large_files_or_with_a_shorter_one_is_not_whole(
    name: str, tmp_path: Path
) -> None:
    _, write = WRITERS[name]
    run, kept = tmp_path / "run", tmp_path / "kept"
    write(run, 900)
    folder = write(run, 1000)
    shutil.copytree(folder, kept)
    needed = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file() and path.name not in UNNAMED]
    assert needed
    for file in needed:
        for harm in (Path.unlink, cut):
            harm(folder / file)
            assert whole_steps(run) == [900], f"{harm} {file}"
            shutil.copy2(kept / file, folder / file)
    assert whole_steps(run) == [1000, 900]


def test_an_empty_or_missing_folder_and_one_of_other_things_is_of_no_format(tmp_path: Path) -> None:
    (tmp_path / "runs-2024").mkdir()
    (tmp_path / "step-000000000004-a1").mkdir()
    (tmp_path / "latest").write_text("nothing of the kind")
    for root in (tmp_path, tmp_path / "missing"):
        assert catalogue(root).format() is None and catalogue(root).entries() == []
        assert catalogue(root).best() is None and catalogue(root).verified("runs-2024") is None


@pytest.mark.parametrize("write", [megatron, deepspeed])
def test_a_step_beyond_the_one_that_the_trackers_file_names_does_not_count(
    write: Callable[[Path, int], Path], tmp_path: Path
) -> None:
    write(tmp_path, 1000)
    write(tmp_path, 900)
    assert whole_steps(tmp_path) == [900]
    (beyond,) = [each for each in catalogue(tmp_path).entries() if not each.is_whole]
    assert [str(each) for each in beyond.faults] == [f"{beyond.folder}: the newest save that ended is of step 900"]


def test_megatron_without_its_trackers_file_has_saved_nothing(tmp_path: Path) -> None:
    megatron(tmp_path, 100)
    (tmp_path / "latest_checkpointed_iteration.txt").unlink()
    assert whole_steps(tmp_path) == []
    assert faults(tmp_path, "iter_0000100") == ["iter_0000100: no save has ended yet"]


def test_a_missing_rank_of_the_megatron_grid_is_told(tmp_path: Path) -> None:
    folder = megatron(tmp_path, 100)
    shutil.rmtree(folder / "mp_rank_01_000")
    assert faults(tmp_path, folder.name) == ["mp_rank_*: are 3 folders instead of 2 x 2"]


def test_an_optimizer_file_that_only_some_megatron_ranks_have_is_told(tmp_path: Path) -> None:
    folder = megatron(tmp_path, 100)
    for rank in ("00_000", "00_001", "01_000"):
        torch_file(folder / f"mp_rank_{rank}" / "distrib_optim.pt")
    assert faults(tmp_path, folder.name) == ["mp_rank_01_001/distrib_optim.pt: is missing"]


def test_deepspeed_parts_are_counted_by_the_world_size_that_the_checkpoint_tells(tmp_path: Path) -> None:
    folder = deepspeed(tmp_path, 10, data=3, model=2)
    assert whole_steps(tmp_path) == [10]
    (folder / "bf16_zero_pp_rank_2_mp_rank_01_optim_states.pt").unlink()
    (folder / "mp_rank_01_model_states.pt").unlink()
    assert faults(tmp_path, folder.name) == [
        "mp_rank_01_model_states.pt: is missing",
        "bf16_zero_pp_rank_2_mp_rank_01_optim_states.pt: is missing",
    ]


def test_deepspeed_with_a_tag_of_its_own_and_partitioned_models_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "best-20"
    facts = {"dp_world_size": 2, "mp_world_size": 1}
    for rank in range(2):
        torch_file(folder / f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt", facts)
        torch_file(folder / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
    (tmp_path / "latest").write_text("best-20\n")
    assert whole_steps(tmp_path) == [20]
    (folder / "zero_pp_rank_1_mp_rank_00_model_states.pt").unlink()
    assert faults(tmp_path, "best-20") == ["zero_pp_rank_1_mp_rank_00_model_states.pt: is missing"]


def test_deepspeed_without_the_latest_file_is_judged_by_its_files(tmp_path: Path) -> None:
    deepspeed(tmp_path, 10)
    (tmp_path / "latest").unlink()
    assert whole_steps(tmp_path) == [10]


def test_a_sharded_hugging_face_model_needs_every_file_of_its_index(tmp_path: Path) -> None:
    folder = hugging_face(tmp_path, 5)
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    safetensors_file(folder / "model-00002-of-00002.safetensors")
    shards = {name: f"model-0000{n}-of-00002.safetensors" for n, name in enumerate("ab", start=1)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": shards}))
    assert whole_steps(tmp_path) == [5]
    (folder / "model-00002-of-00002.safetensors").unlink()
    assert faults(tmp_path, folder.name) == ["model-00002-of-00002.safetensors: is missing"]
    (folder / "model.safetensors.index.json").write_text("[]")
    assert "model.safetensors.index.json: it is damaged" in faults(tmp_path, folder.name)[0]


def test_hugging_face_under_fsdp_or_deepspeed_is_read_through(tmp_path: Path) -> None:
    sharded = hugging_face(tmp_path, 5)
    (sharded / "model.safetensors").unlink()
    dcp_folder(sharded / "pytorch_model_fsdp_0")
    dcp_folder(sharded / "optimizer_0")
    engine = hugging_face(tmp_path, 6)
    (engine / "model.safetensors").unlink()
    deepspeed(engine, 6)
    assert whole_steps(tmp_path) == [6, 5]
    (sharded / "optimizer_0" / ".metadata").unlink()
    (engine / "global_step6" / "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt").unlink()
    assert faults(tmp_path, sharded.name) == ["optimizer_0/.metadata: is missing"]
    assert faults(tmp_path, engine.name) == ["global_step6/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt: is missing"]


def test_a_hugging_face_folder_of_another_step_than_its_name_says_is_told(tmp_path: Path) -> None:
    hugging_face(tmp_path, 5).rename(tmp_path / "checkpoint-6")
    assert faults(tmp_path, "checkpoint-6") == ["trainer_state.json: is of step 5 instead of 6"]
    (tmp_path / "checkpoint-6" / "rng_state_0.pth").unlink()
    (tmp_path / "checkpoint-6" / "model.safetensors").unlink()
    assert faults(tmp_path, "checkpoint-6")[1:] == ["model.safetensors: is missing", "rng_state_0.pth: is missing"]


def test_a_folder_that_is_itself_a_distributed_checkpoint_is_one(tmp_path: Path) -> None:
    dcp_folder(tmp_path / "weights")
    dcp_folder(tmp_path / "weights-30")
    unnumbered = catalogue(tmp_path / "weights").best()
    assert unnumbered is not None and unnumbered.step is None and unnumbered.format is Format.DCP
    assert whole_steps(tmp_path / "weights-30") == [30]
    (tmp_path / "weights-30" / ".metadata").write_bytes(b"")
    assert ".metadata: it is damaged" in faults(tmp_path / "weights-30", "")[0]


def test_torchtitans_model_exports_are_read_by_their_index(tmp_path: Path) -> None:
    folder = tmp_path / "step-4"
    safetensors_file(folder / "model-00001-of-00001.safetensors")
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-00001-of-00001.safetensors"}}')
    assert whole_steps(tmp_path) == [4]


def test_a_folder_in_which_torchtitan_has_just_begun_to_write_is_named_and_does_not_count(tmp_path: Path) -> None:
    titan(tmp_path, 10)
    (tmp_path / "step-20").mkdir()
    assert [(each.step, each.is_whole) for each in catalogue(tmp_path).entries()] == [(10, True), (20, False)]
    assert faults(tmp_path, "step-20") == [".metadata: is missing"]
