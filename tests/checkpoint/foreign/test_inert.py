# SPDX-License-Identifier: Apache-2.0
"""A pickle is read for its values, and nothing that it names is run, or even imported."""

from __future__ import annotations

import collections
import contextlib
import io
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpoint.foreign.inert import Inert, field, number, read_pickle, read_torch_file
from tests.checkpoint.foreign.layouts import dcp_folder, torch_file


class Harmful:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (Path(self.path),))


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=12,
)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_what_a_pickle_would_do_is_not_done(protocol: int, tmp_path: Path) -> None:
    payload = pickle.dumps({"harm": Harmful(str(tmp_path / "touched")), "step": 7}, protocol=protocol)
    read = read_pickle(payload)
    assert number(read, "step") == 7 and isinstance(field(read, "harm"), Inert)
    assert not (tmp_path / "touched").exists()
    assert pickle.loads(payload)["step"] == 7 and (tmp_path / "touched").exists()


@settings(max_examples=60)
@given(value=PLAIN, protocol=st.integers(3, pickle.HIGHEST_PROTOCOL))
def test_plain_values_come_back_as_they_were(value: object, protocol: int) -> None:
    assert read_pickle(pickle.dumps(value, protocol=protocol)) == value


@settings(max_examples=150)
@given(payload=st.binary(max_size=64))
def test_any_bytes_are_read_or_refused_as_damaged(payload: bytes) -> None:
    with contextlib.suppress(ValueError):
        read_pickle(payload)


@pytest.mark.parametrize("payload", [b"N\n.c", b"I1\nc", b"I1\nimodule", b"I1\ncmodule\nname"])
def test_a_name_that_does_not_end_is_damage(payload: bytes) -> None:
    with pytest.raises(ValueError, match="damaged"):
        read_pickle(payload)


@settings(max_examples=80)
@given(data=st.data())
def test_a_pickle_cut_or_changed_anywhere_is_read_or_refused_as_damaged(data: st.DataObject) -> None:
    payload = bytearray(pickle.dumps({"a": [1, {2}, (3, None)], "o": collections.OrderedDict(x=torch.Size([2, 3]))}))
    at = data.draw(st.integers(0, len(payload) - 1))
    payload[at] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ValueError):
        read_pickle(bytes(payload[: data.draw(st.integers(0, len(payload)))]))


@pytest.mark.parametrize("payload", [b"Nr\xff\xff\xff\xff.", b"Np4294967295\n.", b"Np" + b"9" * 5000 + b"\n."])
def test_a_pickle_that_would_take_all_memory_is_refused(payload: bytes) -> None:
    with pytest.raises(ValueError, match="damaged: it numbers a value beyond its own length"):
        read_pickle(payload)


@settings(max_examples=100)
@given(value=PLAIN, protocol=st.integers(0, pickle.HIGHEST_PROTOCOL), number=st.integers(10_000, 2**32 - 1))
def test_such_a_number_is_found_behind_any_value(value: object, protocol: int, number: int) -> None:
    before = pickle.dumps(value, protocol=protocol)[:-1]
    with pytest.raises(ValueError, match="beyond its own length"):
        read_pickle(before + b"r" + number.to_bytes(4, "little") + b".")


def test_a_text_that_looks_like_a_great_number_is_read() -> None:
    for text in ("r\uffff\uffff\uffff", "p99999999\n"):
        assert read_pickle(pickle.dumps([text], protocol=0)) == [text]
        assert read_pickle(pickle.dumps([text])) == [text]


def test_reading_imports_neither_torch_nor_anything_that_is_named(tmp_path: Path) -> None:
    dcp_folder(tmp_path / "step-1")
    program = (
        "import sys\nfrom checkpoint.api import open_catalogue\n"
        f"assert open_catalogue({str(tmp_path)!r}).foreign().best().step == 1\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_torch_file_tells_its_numbers_without_its_tensors(tmp_path: Path) -> None:
    path = torch_file(tmp_path / "file.pt", {"dp_world_size": 4, "is_on": True})
    with path.open("rb") as stream:
        facts = read_torch_file(stream)
    assert number(facts, "dp_world_size") == 4
    assert number(facts, "is_on") is None and number(facts, "missing") is None and number(3, "x") is None


def test_files_that_are_no_archives_tell_nothing_and_damaged_ones_are_named(tmp_path: Path) -> None:
    assert read_torch_file(io.BytesIO(b"older than the zip format")) is None
    torch_file(tmp_path / "file.pt")
    payload = bytearray((tmp_path / "file.pt").read_bytes())
    start = payload.index(b"data.pkl") + 8
    payload[start : start + 200] = bytes(200)
    with pytest.raises(ValueError, match="it is damaged"):
        read_torch_file(io.BytesIO(bytes(payload)))
