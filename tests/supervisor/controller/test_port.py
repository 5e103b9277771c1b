# SPDX-License-Identifier: Apache-2.0
"""The port as agents and the command line use it: over HTTPS, with the real client of the agents."""

from __future__ import annotations

import stat
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from supervisor.agent import api as agent
from supervisor.agent.link import LinkError, Session
from supervisor.controller.port import ControllerPort, OrderQueues
from supervisor.controller.run_folder import RunFolder, read_json, write_json
from supervisor.core import codec


class Listener:
    """A port client that remembers."""

    def __init__(self) -> None:
        self.reports: list[tuple[str, agent.Report]] = []
        self.orders: list[dict[str, Any]] = []

    def take_reports(self, node: str, batch: agent.ReportBatch, reports: tuple[agent.Report, ...]) -> None:
        self.reports += [(node, report) for report in reports]

    def take_order(self, raw: dict[str, Any]) -> dict[str, Any]:
        self.orders.append(raw)
        return {"answer": ["done"]}

    def view(self) -> dict[str, Any]:
        return {"step": 7}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    made = RunFolder(tmp_path_factory.mktemp("run"))
    made.make()
    return made


@pytest.fixture
def listener() -> Listener:
    return Listener()


@pytest.fixture
def orders(folder: RunFolder, listener: Listener) -> Iterator[OrderQueues]:
    queues = OrderQueues()
    port = ControllerPort(folder, queues, listener)
    port.start()
    yield queues
    port.close()


@pytest.fixture
def session(orders: OrderQueues, folder: RunFolder) -> Iterator[Session]:
    opened = Session(folder.path, 10.0)
    yield opened
    opened.close()


def batch(*reports: agent.Report, node: str = "node-0", version: int = agent.PROTOCOL_VERSION) -> Any:
    raw = tuple(codec.encode(report) for report in reports)
    return codec.encode(agent.ReportBatch(version, node, "agent-1", 4, 1, True, raw))


EXIT = agent.RankExited(1, 5.0, agent.RankExit(1, 1, 4242, -9, 4.9))


def test_reports_arrive_whole_and_are_acknowledged(session: Session, listener: Listener) -> None:
    answer = session.request("POST", "/v1/nodes/node-0/reports", batch(EXIT))
    assert answer == {"acknowledged": 4}
    assert listener.reports == [("node-0", EXIT)]


def test_orders_wait_for_the_agent_and_come_once_for_each_id(session: Session, orders: OrderQueues) -> None:
    orders.put("node-0", agent.FinishAttempt(1, 5.0))
    orders.put("node-1", agent.Leave())
    first = session.request("GET", "/v1/nodes/node-0/orders?after=0&wait=0")["orders"]
    assert [agent.decode_order(each["order"]) for each in first] == [agent.FinishAttempt(1, 5.0)]
    assert session.request("GET", f"/v1/nodes/node-0/orders?after={first[-1]['id']}&wait=0") == {"orders": []}


def test_a_long_poll_ends_when_an_order_comes(session: Session, orders: OrderQueues) -> None:
    threading.Timer(0.1, orders.put, ("node-0", agent.Leave())).start()
    asked = time.monotonic()
    answer = session.request("GET", "/v1/nodes/node-0/orders?after=0&wait=9")
    assert len(answer["orders"]) == 1
    assert time.monotonic() - asked < 9


def test_orders_of_older_attempts_are_dropped(orders: OrderQueues) -> None:
    orders.put("node-0", agent.FinishAttempt(1, 5.0))
    orders.put("node-0", agent.FinishAttempt(2, 5.0))
    orders.put("node-0", agent.FinishAttempt(2, 5.0))
    assert [each["order"]["attempt"] for each in orders.after("node-0", 0, 0.0)] == [2]
    orders.forget(2)
    assert orders.after("node-0", 0, 0.0) == []


def test_a_wrong_token_is_refused(session: Session, folder: RunFolder, listener: Listener) -> None:
    described = read_json(folder.controller)
    write_json(folder.controller, {**described, "token": "guessed"})
    with pytest.raises(LinkError, match="403"):
        session.request("POST", "/v1/nodes/node-0/reports", batch(EXIT))
    assert listener.reports == []


def test_another_certificate_is_refused_before_the_token_is_sent(session: Session, folder: RunFolder) -> None:
    described = read_json(folder.controller)
    write_json(folder.controller, {**described, "certificate_sha256": "0" * 64})
    with pytest.raises(LinkError, match="another certificate"):
        session.request("GET", "/v1/view")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (batch(EXIT, version=99), "protocol version 99"),
        (batch(EXIT, node="node-7"), "was sent to the path of node-0"),
        ({"type": "nonsense"}, "ReportBatch"),
        ({**batch(), "reports": [{"type": "Rumour"}]}, "unknown type .*Rumour"),
    ],
)
def test_a_body_that_makes_no_sense_is_refused_with_the_reason(
    session: Session, listener: Listener, body: object, said: str
) -> None:
    with pytest.raises(LinkError, match=said):
        session.request("POST", "/v1/nodes/node-0/reports", body)
    assert listener.reports == []


def test_a_person_is_answered(session: Session, listener: Listener) -> None:
    assert session.request("POST", "/v1/person", {"order": "pause"}) == {"answer": ["done"]}
    assert session.request("GET", "/v1/view") == {"step": 7}
    assert listener.orders == [{"order": "pause"}]


@pytest.mark.parametrize("path", ["/", "/v1/nodes/node-0/secrets", "/v2/view/x/y"])
def test_an_unknown_path_is_refused(session: Session, path: str) -> None:
    with pytest.raises(LinkError, match="404"):
        session.request("GET", path)


def test_a_damaged_certificate_is_made_anew(folder: RunFolder, listener: Listener) -> None:
    certificate = folder.path / "controller.crt"
    certificate.write_bytes(b"rubbish")
    port = ControllerPort(folder, OrderQueues(), listener)
    port.start()
    session = Session(folder.path, 10.0)
    assert session.request("GET", "/v1/view") == {"step": 7}
    session.close()
    port.close()


def test_only_the_user_can_read_address_and_key(orders: OrderQueues, folder: RunFolder) -> None:
    for path in (folder.controller, folder.path / "controller.key"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
