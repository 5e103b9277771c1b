# SPDX-License-Identifier: Apache-2.0
"""Replicas in a peer's memory: verified, bounded, from those alone who know the secret, and never in the way."""

from __future__ import annotations

import errno
import hmac
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import xxhash

from checkpoint.api import CheckpointRef
from checkpoint.held import HeldImage
from checkpoint.holding import Holding
from checkpoint.manifest import FileRecord
from checkpoint.peer_wire import PeerAddress, decode_header, receive_exactly
from checkpoint.plan import RankPlan
from checkpoint.record import Notes, encode_outline, encode_record
from checkpoint.replicas import ReplicaReceiver, ReplicaSender, own_host
from checkpoint.ring import next_in_ring
from checkpoint.shelf import Shelf
from checkpoint.slab import Slab, Word, slab_bytes

_PATIENCE_S = 60.0


def until(is_so: Callable[[], object]) -> None:
    ends = time.monotonic() + _PATIENCE_S
    while not is_so():
        assert time.monotonic() < ends
        time.sleep(0.01)


class Node:
    """A folder for slabs, a shelf, and a receiver; `live` are the launches that run on it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self.shelf = Shelf()
        self.live = {"launch"}
        self.receiver = ReplicaReceiver(
            folder, "/store", self.shelf, host="127.0.0.1", is_live=lambda launch: launch in self.live
        )

    def steps(self) -> list[int]:
        return sorted(each.ref.step for each in self.shelf.images())

    def close(self) -> None:
        self.receiver.close()
        self.shelf.clear()


@pytest.fixture
def peer(tmp_path: Path) -> Iterator[Node]:
    with closing(Node(tmp_path / "peer")) as made:
        yield made


@pytest.fixture
def sender(peer: Node) -> Iterator[ReplicaSender]:
    with closing(ReplicaSender(peer.receiver.address)) as made:
        yield made


def snapshot(folder: Path, step: int, *, rank: int = 0, size: int = 100_000) -> tuple[HeldImage, Slab]:
    """A full slab as a rank leaves it."""
    content = os.urandom(size)
    plan = RankPlan("launch", step, rank, 2)
    record = encode_record(CheckpointRef(step, 1), Notes("", None, (), None), plan, encode_outline({}, {}, []))
    slab = Slab.create(folder / f"own-{rank}-{step}.slab", slab_bytes(size, len(record)))
    slab.put_record(size, record)
    with slab.image as image:
        image[:size] = content
    file = FileRecord(size, xxhash.xxh3_128_hexdigest(content))
    return HeldImage(CheckpointRef(step, 1), "launch", step, rank, 2, str(slab.path), file), slab


def send(sender: ReplicaSender, image: HeldImage, slab: Slab) -> None:
    """Offer an image, and wait until the sender is through with it."""
    is_over = threading.Event()
    sender.offer(image, slab, is_over.set)
    assert is_over.wait(_PATIENCE_S)


def test_a_replica_is_the_image_byte_for_byte_with_its_record(
    peer: Node, sender: ReplicaSender, tmp_path: Path
) -> None:
    image, slab = snapshot(tmp_path, 7)
    send(sender, image, slab)
    (held,) = peer.shelf.images()
    assert held == replace(image, slab=held.slab, is_replica=True)
    theirs = Slab.attach(Path(held.slab))
    assert bytes(theirs.image[: theirs.image_length]) == bytes(slab.image[: slab.image_length])
    assert theirs.record == slab.record
    theirs.close()
    slab.close(remove=True)


def test_the_two_newest_of_each_rank_are_kept_and_older_memory_is_given_back(
    peer: Node, sender: ReplicaSender, tmp_path: Path
) -> None:
    for step in range(1, 6):
        for rank in (0, 1):
            image, slab = snapshot(tmp_path, step, rank=rank)
            send(sender, image, slab)
            slab.close(remove=True)
    assert peer.steps() == [4, 4, 5, 5]
    assert len(list(peer.folder.glob("*.slab"))) == 4
    peer.shelf.clear()
    assert list(peer.folder.glob("*.slab")) == []


def test_a_replica_that_comes_twice_does_not_push_out_the_one_before_it(
    peer: Node, sender: ReplicaSender, tmp_path: Path
) -> None:
    (older, first), (newer, second) = snapshot(tmp_path, 5), snapshot(tmp_path, 6)
    for image, slab in ((older, first), (newer, second), (newer, second)):
        send(sender, image, slab)
    assert peer.steps() == [5, 6] and len(list(peer.folder.glob("*.slab"))) == 2
    for slab in (first, second):
        slab.close(remove=True)


def test_an_image_that_changes_while_it_is_sent_is_not_kept(peer: Node, sender: ReplicaSender, tmp_path: Path) -> None:
    image, slab = snapshot(tmp_path, 1)
    with slab.image as content:
        content[500] ^= 1
    send(sender, image, slab)
    assert peer.steps() == [] and list(peer.folder.glob("*.slab")) == []
    good, fresh = snapshot(tmp_path, 2)
    send(sender, good, fresh)
    assert peer.steps() == [2]
    for each in (slab, fresh):
        each.close(remove=True)


def test_replicas_of_a_launch_that_does_not_run_there_are_not_kept(
    peer: Node, sender: ReplicaSender, tmp_path: Path
) -> None:
    peer.live.clear()
    image, slab = snapshot(tmp_path, 1)
    send(sender, image, slab)
    assert peer.steps() == []
    slab.close(remove=True)


def test_who_does_not_know_the_secret_leaves_nothing(
    peer: Node, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    address = peer.receiver.address
    image, slab = snapshot(tmp_path, 1)
    stranger = ReplicaSender(PeerAddress(address.host, address.port, "00" * 32))
    with closing(stranger), caplog.at_level(logging.WARNING):
        send(stranger, image, slab)
        until(lambda: "does not know this launch's secret" in caplog.text)
    assert peer.steps() == [] and address.secret not in caplog.text
    slab.close(remove=True)


def test_while_the_peer_is_away_nothing_waits_and_it_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        port = nobody.getsockname()[1]
        image, slab = snapshot(tmp_path, 1)
        with caplog.at_level(logging.WARNING), closing(ReplicaSender(PeerAddress("127.0.0.1", port, "00"))) as sender:
            began = time.monotonic()
            for _ in range(20):
                send(sender, image, slab)
            assert time.monotonic() - began < 30
    assert caplog.text.count("peer takes no replicas") == 1
    slab.close(remove=True)


def test_a_receiver_that_lacks_descriptors_for_a_while_takes_replicas_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    accept = socket.socket.accept
    lacking = iter(range(2))

    def lack(listener: socket.socket) -> object:
        if next(lacking, None) is not None:
            raise OSError(errno.EMFILE, "Too many open files")
        return accept(listener)

    monkeypatch.setattr(socket.socket, "accept", lack)
    image, slab = snapshot(tmp_path, 7)
    with closing(Node(tmp_path / "peer")) as peer, closing(ReplicaSender(peer.receiver.address)) as sender:
        send(sender, image, slab)
        assert peer.steps() == [7]
    assert caplog.text.count("a peer was not let in") == 2
    slab.close(remove=True)


def test_a_peer_that_hangs_holds_up_no_offer(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = PeerAddress("127.0.0.1", silent.getsockname()[1], "00")
        images = [snapshot(tmp_path, step) for step in range(1, 5)]
        with closing(ReplicaSender(address)) as sender:
            over: list[int] = []
            began = time.monotonic()
            for image, slab in images:
                sender.offer(image, slab, lambda step=image.ref.step: over.append(step))  # type: ignore[misc]
            assert time.monotonic() - began < 5
            # The first is on its way, the last waits; those between were left out for newer ones.
            assert over in ([2, 3], [1, 2, 3])
        assert sorted(over) == [1, 2, 3, 4]
    for _, slab in images:
        slab.close(remove=True)


def test_a_sender_that_dies_in_the_middle_leaves_no_memory_taken(peer: Node) -> None:
    address = peer.receiver.address
    with socket.create_connection((address.host, address.port)) as dying:
        nonce = receive_exactly(dying, 32)
        dying.sendall(hmac.digest(bytes.fromhex(address.secret), nonce, "sha256"))
        dying.sendall(
            b'{"ref": {"step": 1, "attempt": 1}, "launch": "launch", "serial": 1, "rank": 0, "world_size": 2,'
            b' "file": {"bytes": 100000, "xxh3": "00"}, "record": {"bytes": 2, "xxh3": "00"}}\n{}' + b"x" * 5000
        )
        until(lambda: list(peer.folder.glob("*.slab")))
    until(lambda: not list(peer.folder.glob("*.slab")))
    assert peer.steps() == []


@pytest.mark.parametrize(
    "line",
    [
        b"{}\n",
        b"no json\n",
        b"[]\n",
        b'{"ref": 1}\n',
        (
            b'{"ref": {"step": 1, "attempt": 1}, "launch": "a", "serial": 1, "rank": "0", "world_size": 2,'
            b' "file": {"bytes": 1, "xxh3": "00"}, "record": {"bytes": 2, "xxh3": "00"}}\n'
        ),
        (
            b'{"ref": {"step": 1, "attempt": 1}, "launch": "a", "serial": 1, "rank": 0, "world_size": 2,'
            b' "file": {"bytes": 1, "xxh3": "00"}, "record": {"bytes": 99999999999, "xxh3": "00"}}\n'
        ),
    ],
    ids=["nothing in it", "no json", "a list", "wrong types", "a rank that is no number", "a record without end"],
)
def test_what_is_no_header_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError, match=r"no header of a replica|Expecting"):
        decode_header(line)


def test_what_has_served_is_given_back_also_when_it_comes_late(tmp_path: Path) -> None:
    shelf = Shelf()
    image, slab = snapshot(tmp_path, 5)
    holding = Holding()
    holding.adopt(slab, image)
    shelf.release([(5, 1, "launch")])
    shelf.put("launch", 0, holding)
    assert shelf.images() == [] and not Path(image.slab).exists()


def test_an_image_that_is_being_filled_anew_is_held_no_more(tmp_path: Path) -> None:
    image, slab = snapshot(tmp_path, 5)
    holding = Holding()
    holding.adopt(slab, image)
    assert holding.images() == [image]
    slab.word = Word.FILLING
    assert holding.images() == []
    holding.trim()
    assert not Path(image.slab).exists()


@pytest.mark.parametrize(("rank", "peer_port"), [(0, 2), (1, 2), (2, 3), (3, 1)])
def test_nodes_form_a_ring_in_the_order_of_their_ranks(rank: int, peer_port: int) -> None:
    nodes = {port: PeerAddress("host", port, "00") for port in (1, 2, 3)}
    told = [nodes[1], nodes[1], nodes[2], nodes[3]]
    found = next_in_ring(told, rank)
    assert found == nodes[peer_port]


@pytest.mark.parametrize("told", [[PeerAddress("host", 1, "00")] * 4, [None, PeerAddress("host", 1, "00")]])
def test_without_a_second_node_there_is_no_peer(told: list[PeerAddress | None]) -> None:
    assert next_in_ring(told, 0) is None and next_in_ring(told, 1) is None


def test_the_address_for_peers_is_the_one_given_or_that_towards_the_master() -> None:
    assert own_host({"CHECKPOINT_ADDRESS": "10.1.2.3"}) == "10.1.2.3"
    assert own_host({"MASTER_ADDR": "127.0.0.1"}) == "127.0.0.1"
    assert own_host({"MASTER_ADDR": "localhost"}) in ("127.0.0.1", "::1")


def test_a_master_whose_own_name_means_the_loopback_takes_the_address_towards_everywhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ways = {"node-0": "127.0.1.1", "192.0.2.1": "10.0.0.7", "elsewhere": "10.0.0.8"}
    monkeypatch.setattr("checkpoint.replicas._towards", ways.get)
    assert own_host({"MASTER_ADDR": "node-0"}) == "10.0.0.7"
    assert own_host({"MASTER_ADDR": "elsewhere"}) == "10.0.0.8"
    assert own_host({"MASTER_ADDR": "no-such-host"}) == "10.0.0.7"
