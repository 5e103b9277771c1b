# SPDX-License-Identifier: Apache-2.0
"""Draws docs/state-machine.md: `python -m tests.supervisor.core.drawing > docs/state-machine.md`.

Every place that a run can stand in is given every event, and what it answers is written down.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from dataclasses import replace

from supervisor.core import decisions as d
from supervisor.core import events as e
from supervisor.core import values
from supervisor.core.machine import advance
from supervisor.core.policy import Policy
from supervisor.core.values import Phase, WaitFor
from tests.supervisor.core.journeys import (
    ADVISE,
    BAD_GPU,
    CRASH,
    PLACES,
    SCRIPT_BUG,
    STORAGE_AWAY,
    SUSPECT,
    WITH_PROBE,
    Journey,
    happenings,
)

HEAD = """# State machine

Drawn from the code by `python -m tests.supervisor.core.drawing > docs/state-machine.md`; a test says when it is stale.

```mermaid
stateDiagram-v2
    [*] --> LAUNCHING : RunSubmitted
"""
VERDICTS = (CRASH, BAD_GPU, SUSPECT, STORAGE_AWAY, SCRIPT_BUG)


def transitions() -> dict[tuple[Phase, Phase], list[str]]:
    """The events that lead from one phase to another, in the order in which they were found."""
    found: dict[tuple[Phase, Phase], list[str]] = {}
    for name, journey, event in _tries():
        after, _ = advance(journey.state, event, journey.policy)
        edge = (journey.state.phase, after.phase)
        if edge[0] is not edge[1]:
            names = found.setdefault(edge, [])
            if name not in names:
                names.append(name)
    return found


def _tries() -> Iterator[tuple[str, Journey, e.Event]]:
    for make in PLACES.values():
        journey = make()
        for name, event in happenings(journey).items():
            yield name, journey, event
    diagnosing, probing = PLACES["diagnosing"](), PLACES["probing"]()
    for policy in (Policy(), WITH_PROBE, ADVISE):
        for verdict in VERDICTS:
            judged = PLACES["diagnosing"]()
            judged.policy = policy
            yield "Diagnosed", judged, e.Diagnosed(diagnosing.at, diagnosing.attempt, verdict)
    yield "Probed", probing, e.Probed(probing.at, probing.attempt, ("n1", "n2"))


def diagram() -> str:
    order = list(Phase)
    edges = sorted(transitions().items(), key=lambda item: (order.index(item[0][0]), order.index(item[0][1])))
    lines = [f"    {a.value} --> {b.value} : {_label(names)}" for (a, b), names in edges]
    return "\n".join([*lines, "    SUCCEEDED --> [*]", "    ABANDONED --> [*]"])


def _label(names: list[str]) -> str:
    facts = [name.replace("TimePassed deadline", "deadline") for name in names if not name.startswith("order ")]
    orders = [name.removeprefix("order ") for name in names if name.startswith("order ")]
    return ", ".join([*facts, *([f"orders {' '.join(orders)}"] if orders else [])])


def meanings(enum: type[values.Phase]) -> dict[str, str]:
    """The docstring under each member of an enum, which exists in the source only."""
    body = ast.parse(inspect.getsource(enum)).body[0]
    assert isinstance(body, ast.ClassDef)
    found = {}
    for member, text in zip(body.body, body.body[1:], strict=False):
        if isinstance(member, ast.Assign) and isinstance(text, ast.Expr):
            found[ast.unparse(member.targets[0])] = " ".join(ast.literal_eval(text.value).split())
    return found


def phase_table() -> str:
    rows = [f"| {name} | {text} |" for name, text in meanings(Phase).items()]
    return "\n".join(["| phase | meaning |", "|---|---|", *rows])


def place_table() -> str:
    """What each place waits for, for how long at most with the default policy, and what its deadline means."""
    lines = [
        "| place | phase | repeats until answered | deadline after | at the deadline |",
        "|---|---|---|---|---|",
    ]
    for name, make in PLACES.items():
        journey = make()
        state = journey.state
        if state.is_final:
            lines.append(f"| {name} | {state.phase.value} | | never | |")
            continue
        phase = state.phase.value if state.waiting_for is None else f"{state.phase.value} ({state.waiting_for.value})"
        pending = "" if state.pending is None else type(state.pending).__name__
        allowed = state.deadline - journey.at
        after, made = advance(state, e.TimePassed(state.deadline), replace(journey.policy))
        lines.append(f"| {name} | {phase} | {pending} | {allowed:g} s | {_outcome(after.phase, made)} |")
    return "\n".join(lines)


def _outcome(phase: Phase, made: tuple[d.Decision, ...]) -> str:
    asked = [type(x).__name__ for x in made if not isinstance(x, d.Notify)]
    return f"{phase.value}: {' and '.join(asked)}" if asked else f"{phase.value}: a person is told"


def wait_list() -> str:
    return ", ".join(wait.value for wait in WaitFor)


def document() -> str:
    return f"""{HEAD}{diagram()}
```

## Phases

{phase_table()}

WAITING says for what: {wait_list()}.

## Places and their deadlines

A place is a phase with what is pending in it. Seconds are those of the default policy and depend on it. An event of an
older attempt changes nothing anywhere, and a final phase is left by RunSubmitted only.

{place_table()}
"""


if __name__ == "__main__":
    sys.stdout.write(document())
