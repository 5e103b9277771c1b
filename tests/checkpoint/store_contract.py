# SPDX-License-Identifier: Apache-2.0
"""What every store has to do, whatever it is made of; a test class for a store derives from this one."""

from __future__ import annotations

import mmap
from contextlib import suppress

import pytest

from checkpoint import Checkpointer
from checkpoint.api import CheckpointRef, EntryState, Store
from checkpoint.catalogue import Catalogue
from tests.checkpoint.training import fresh_state, train

FOLDER = "step-000000000001-a1"
PARTIAL = f"{FOLDER}.tmp"


class StoreContract:
    """Needs a fixture `store`, new for every test."""

    def test_a_store_that_nobody_has_written_to_is_empty(self, store: Store) -> None:
        assert store.folders() == [] and store.files(FOLDER) == {}
        for name in ("FENCE.json", f"{FOLDER}/manifest.json"):
            with pytest.raises(FileNotFoundError):
                store.read(name)

    def test_a_file_is_read_as_it_was_written_last(self, store: Store) -> None:
        store.make_folder("")
        store.write("FENCE.json", b"one")
        store.write("FENCE.json", b"second")
        assert store.read("FENCE.json") == b"second" and store.folders() == []

    def test_a_buffer_is_written_to_its_length_and_read_as_a_stream(self, store: Store) -> None:
        length = 40_000_003
        with mmap.mmap(-1, 40_005_632) as memory:
            memory[:length] = bytes(range(251)) * (length // 251) + bytes(length % 251)
            expected = memory[:length]
            store.make_folder(PARTIAL)
            with memoryview(memory) as payload:
                store.put_buffer(f"{PARTIAL}/data", payload, length)
        assert store.files(PARTIAL) == {"data": length}
        with store.open(f"{PARTIAL}/data") as stream:
            assert stream.read(5) == expected[:5]
            stream.seek(39_000_000)
            assert stream.read() == expected[39_000_000:]
            stream.seek(100)
            assert stream.read(1000) == expected[100:1100]

    def test_a_stream_is_written_when_it_ends(self, store: Store) -> None:
        store.make_folder(PARTIAL)
        with store.create(f"{PARTIAL}/data") as sink:
            sink.write(b"one")
            sink.write(memoryview(b"two"))
        assert store.read(f"{PARTIAL}/data") == b"onetwo"

    def committed(self, store: Store) -> None:
        store.make_folder(PARTIAL)
        store.write(f"{PARTIAL}/data", b"values")
        store.write(f"{PARTIAL}/manifest.json", b"{}")
        store.rename(PARTIAL, FOLDER)

    def test_a_commit_shows_the_folder_under_its_name_with_all_its_files(self, store: Store) -> None:
        store.make_folder(PARTIAL)
        store.write(f"{PARTIAL}/data", b"values")
        assert store.folders() == [PARTIAL] and store.files(FOLDER) == {}
        store.write(f"{PARTIAL}/manifest.json", b"{}")
        assert store.folders() == [PARTIAL] and store.files(PARTIAL) == {"data": 6, "manifest.json": 2}
        store.rename(PARTIAL, FOLDER)
        assert store.folders() == [FOLDER] and store.files(FOLDER) == {"data": 6, "manifest.json": 2}
        assert store.files(PARTIAL) == {} and store.read(f"{FOLDER}/data") == b"values"

    def test_a_second_commit_of_the_same_checkpoint_is_refused_and_changes_nothing(self, store: Store) -> None:
        self.committed(store)
        # A store may refuse as soon as somebody begins to write again, or when it comes to the commit.
        with suppress(FileExistsError):
            store.make_folder(PARTIAL)
        with suppress(FileExistsError, FileNotFoundError):
            store.write(f"{PARTIAL}/data", b"late")
        with suppress(FileExistsError, FileNotFoundError):
            store.write(f"{PARTIAL}/manifest.json", b"other")
        with pytest.raises((FileExistsError, FileNotFoundError)):
            store.rename(PARTIAL, FOLDER)
        assert store.read(f"{FOLDER}/manifest.json") == b"{}" and store.read(f"{FOLDER}/data") == b"values"

    def test_what_is_set_aside_keeps_its_files_under_another_name(self, store: Store) -> None:
        self.committed(store)
        store.rename(FOLDER, f"damaged-{FOLDER}-1")
        assert store.folders() == [f"damaged-{FOLDER}-1"] and store.files(FOLDER) == {}
        assert store.files(f"damaged-{FOLDER}-1") == {"data": 6, "manifest.json": 2}
        assert store.read(f"damaged-{FOLDER}-1/manifest.json") == b"{}"

    def test_what_is_not_there_cannot_be_renamed(self, store: Store) -> None:
        with pytest.raises(FileNotFoundError):
            store.rename(FOLDER, f"damaged-{FOLDER}")

    def test_a_folder_is_removed_with_its_files_and_nothing_else(self, store: Store) -> None:
        self.committed(store)
        store.make_folder("step-000000000002-a1.tmp")
        store.write("step-000000000002-a1.tmp/data", b"x")
        store.remove(f"deleted-{FOLDER}")
        store.rename(FOLDER, f"deleted-{FOLDER}")
        assert store.folders() == [f"deleted-{FOLDER}", "step-000000000002-a1.tmp"]
        store.remove(f"deleted-{FOLDER}")
        store.remove("step-000000000002-a1.tmp/data")
        store.remove("step-000000000002-a1.tmp/data")
        assert FOLDER not in " ".join(store.folders()) and store.files("step-000000000002-a1.tmp") == {}

    def test_a_training_is_saved_restored_pruned_and_set_aside_in_it(self, store: Store) -> None:
        state = fresh_state(0)
        with Checkpointer("ignored", keep=2, store=store) as checkpointer:
            for step in range(1, 4):
                train(state, 1)
                checkpointer.save(step, state, wait=True)
        catalogue = Catalogue(store)
        assert [each.step for each in catalogue.committed()] == [2, 3]
        assert all(catalogue.verify(each.ref) == [] for each in catalogue.committed())
        catalogue.set_aside(CheckpointRef(3, 1), "for the test")
        entries = {each.folder: each.state for each in catalogue.all_entries()}
        assert entries["damaged-step-000000000003-a1"] is EntryState.SET_ASIDE
        restored = fresh_state(1)
        with Checkpointer("ignored", store=store) as checkpointer:
            assert checkpointer.restore(restored) == 2 and checkpointer.attempt == 2
        assert restored["notes"]["epoch"] == 2

    def test_an_attempt_that_was_cut_off_commits_nothing(self, store: Store) -> None:
        state = fresh_state(0)
        with Checkpointer("ignored", store=store) as late:
            late.save(1, state, wait=True)
            with suppress(OSError), Checkpointer("ignored", store=store) as successor:
                successor.restore(state)
            late.save(2, state, wait=True)
        assert [each.step for each in Catalogue(store).committed()] == [1]
