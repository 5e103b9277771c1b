# SPDX-License-Identifier: Apache-2.0
"""From SIGKILL of a rank to the first new step: supervised in each warm mode, beside torchrun's restart in place.

All launches run the same `examples/train_gpt.py` with the same checkpoints; they take turns in rounds, so that what
else the machine does meets all of them alike. The first new step is the first one that the restarted rank 0 completes;
it repeats a step that was lost since the checkpoint. Kills come in steady state: `SETTLE_S` after the first new step
and, when supervised, not before the standby is ready. Kills before that are a row of their own.

The bar: the supervised median is at most 1.5 times torchrun's, and every try recovers. Fifty tries take about half an
hour, by far the most of it start-ups and settling.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGKILL

from benchmarks import measuring
from benchmarks.live import Launch, LaunchError, PlainLaunch, SupervisedLaunch
from benchmarks.measuring import ROOT, Bar
from supervisor.core.incidents import Incident

TRIES = 50
ROUND = 5
"""Kills of one launch before the next launch takes its turn."""
SETTLE_S = 5.0
EARLY_S = 0.5
"""After the first new step, for the kills that come before a standby can be ready."""
SAVE_EVERY = 20
RATIO_BAR = 1.5
TRAINING = ("--steps", "1000000", "--save-every", str(SAVE_EVERY), "--evaluate-every", "1000000")
TORCHRUN = ("torchrun", "--standalone", "--nproc-per-node", "2")
VICTIM = 1


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to recover; `share` is the part of the tries that it gets."""

    name: str
    warm: str | None
    """None: torchrun alone."""
    share: float = 1.0
    is_early: bool = False

    @property
    def has_bar(self) -> bool:
        return self.warm in ("launcher", "ranks") and not self.is_early


VARIANTS = (
    Variant("torchrun in place", None),
    Variant("supervised, warm launcher", "launcher"),
    Variant("supervised, warm ranks", "ranks"),
    Variant("supervised, warm off", "off", 0.2),
    Variant("supervised, standby not ready", "launcher", 0.2, is_early=True),
)


@dataclass(slots=True)
class Found:
    """What the tries of one variant gave; seconds."""

    tries: int = 0
    recovery_s: list[float] = field(default_factory=list)
    until_ring_s: list[float] = field(default_factory=list)
    """From the kill until the new rank 0 had imported and made its ring."""
    standby_s: list[float] = field(default_factory=list)
    """From the first new step until the next standby was ready."""
    incidents: list[Incident] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def launch_of(variant: Variant, folder: Path) -> Launch:
    script = (str(ROOT / "examples" / "train_gpt.py"), *TRAINING, "--checkpoints", str(folder / "checkpoints"))
    if variant.warm is None:
        return PlainLaunch("plain", folder, (*TORCHRUN, "--max-restarts", "100000", *script))
    return SupervisedLaunch("recovery", folder, (*TORCHRUN, *script), ("--warm", variant.warm))


def settle(launch: Launch, variant: Variant, first_at: float, kills: int, found: Found) -> None:
    """Wait for the steady state after a first step."""
    if variant.is_early:
        time.sleep(max(0.0, first_at + EARLY_S - time.time()))
        return
    if isinstance(launch, SupervisedLaunch) and variant.warm != "off":
        launch.wait_for("standby", lambda: len(launch.standbys_ready) > kills)
        found.standby_s.append(launch.standbys_ready[kills] - first_at)
    launch.wait_for("checkpoint", lambda: launch.step() > SAVE_EVERY)
    time.sleep(max(0.0, first_at + SETTLE_S - time.time()))


def kill_in_turn(variant: Variant, folder: Path, tries: int, found: Found) -> None:
    """One launch, killed `tries` times; a try that does not recover ends the turn."""
    launch = launch_of(variant, folder)
    with launch.running():
        first = launch.first_step()
        for kills in range(tries):
            settle(launch, variant, first.at, kills, found)
            found.tries += 1
            before = launch.step()
            killed_at = launch.send(VICTIM, SIGKILL)
            first = launch.first_step(after=killed_at)
            assert before - 3 * SAVE_EVERY < first.step <= before + 2, f"resumed at {first.step} after {before}"
            found.recovery_s.append(first.at - killed_at)
            found.until_ring_s.append(first.started_at - killed_at)
            if isinstance(launch, SupervisedLaunch):
                launch.wait_for("end of the incident", lambda: launch.incidents()[-1].first_step_at is not None)
    if isinstance(launch, SupervisedLaunch):
        found.incidents += launch.incidents()


def measured(tries: int, variants: Sequence[Variant], folder: Path) -> dict[str, Found]:
    """All variants by their name, in rounds."""
    found = {variant.name: Found() for variant in variants}
    left = {variant.name: max(1, round(tries * variant.share)) for variant in variants}
    turn = 0
    while any(left.values()):
        for variant in variants:
            count, each = min(ROUND, left[variant.name]), found[variant.name]
            if not count:
                continue
            turn += 1
            before = each.tries
            try:
                kill_in_turn(variant, folder / f"{turn}", count, each)
            except LaunchError as error:
                each.failures.append(str(error))
                each.tries = max(each.tries, before + 1)
                print(f"{variant.name}: {error}", flush=True)
            left[variant.name] -= each.tries - before
    return found


def parts_of(incidents: Sequence[Incident]) -> dict[str, float]:
    """Median seconds of each part of a recovery, in the order in which they happen."""
    parts = [each.parts() for each in incidents]
    names = dict.fromkeys(name for each in parts for name in each)
    return {name: round(statistics.median(each.get(name, 0.0) for each in parts), 4) for name in names}


def summary(found: Found) -> dict[str, object]:
    return {
        "tries": found.tries,
        "recovered": len(found.recovery_s),
        "recovery_s": measuring.spread(found.recovery_s),
        "until_imported_s": measuring.spread(found.until_ring_s),
        "standby_ready_after_s": measuring.spread(found.standby_s),
        "parts_median_s": parts_of(found.incidents),
        "failures": found.failures,
        "each_s": [round(each, 3) for each in found.recovery_s],
    }


def show(found: dict[str, Found]) -> None:
    columns = ("recovery, s", "recovered", "median", "least", "most", "until imported", "then to step", "to torchrun")
    base = measuring.median(next(iter(found.values())).recovery_s)
    rows = []
    for name, each in found.items():
        total, ring = measuring.spread(each.recovery_s), measuring.spread(each.until_ring_s)
        rest = measuring.spread([a - b for a, b in zip(each.recovery_s, each.until_ring_s, strict=True)])
        numbers = (total["median"], total["least"], total["most"], ring["median"], rest["median"])
        rows.append((name, f"{len(each.recovery_s)}/{each.tries}", *numbers, f"{total['median'] / base:.2f}"))
    measuring.show(columns, rows)
    parts = {name: parts_of(each.incidents) for name, each in found.items() if each.incidents}
    names = list(dict.fromkeys(part for each in parts.values() for part in each))
    if names:
        measuring.show(("median part, s", *names), [(row, *(p.get(n, "") for n in names)) for row, p in parts.items()])


def bars(found: dict[str, Found], variants: Sequence[Variant]) -> list[Bar]:
    """Every try recovers; in steady state not much slower than torchrun alone."""
    base = next(measuring.median(found[v.name].recovery_s) for v in variants if v.warm is None)
    result = []
    for variant in variants:
        each = found[variant.name]
        result.append(Bar(f"{variant.name}: tries without recovery", each.tries - len(each.recovery_s), 0, "tries"))
        if variant.has_bar:
            ratio = measuring.median(each.recovery_s) / base
            result.append(Bar(f"{variant.name}: median recovery over torchrun's", ratio, RATIO_BAR, "times"))
    return result


def main() -> int:
    """Measure, print and write."""
    parser = measuring.options(__doc__, "recovery")
    parser.add_argument("--tries", type=int, default=TRIES, help="kills of each main variant")
    parser.add_argument("--only", action="append", choices=[v.name for v in VARIANTS], help="beside torchrun")
    chosen = parser.parse_args()
    variants = [v for v in VARIANTS if not chosen.only or v.warm is None or v.name in chosen.only]
    began = measuring.place()
    with tempfile.TemporaryDirectory(prefix="recovery-") as folder:
        found = measured(chosen.tries, variants, Path(folder))
    show(found)
    parameters = {"tries": chosen.tries, "kills_a_launch": ROUND, "settle_s": SETTLE_S, "save_every": SAVE_EVERY}
    results = {"variants": {name: summary(each) for name, each in found.items()}}
    return measuring.conclude(began, chosen.output, parameters, results, bars(found, variants))


if __name__ == "__main__":
    sys.exit(main())
