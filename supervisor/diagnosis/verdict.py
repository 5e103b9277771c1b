# SPDX-License-Identifier: Apache-2.0
"""From all clues, exit codes and stacks to one cause.

The order of trust is a ladder: the kernel of one node; a rank's own first error; an end that the supervisor saw; a
hang; errors that may be survived; an end that a launcher reports; what peers say; time-outs; clean-up. A rung is
looked at only when the ones above are empty, so a loud symptom never wins over a quiet cause.
"""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

from supervisor.diagnosis import exits as exit_rules
from supervisor.diagnosis.answers import Case, also_seen, from_clue, from_rule, no_failure, node_of, symptom_notes
from supervisor.diagnosis.clues import Clue
from supervisor.diagnosis.collectives import parse_timeout, read_timeouts
from supervisor.diagnosis.exits import ExitRule
from supervisor.diagnosis.hangs import read_hang
from supervisor.diagnosis.launcher import ReportedExit
from supervisor.diagnosis.model import UNKNOWN, Action, Diagnosis, EvidenceLine, RankExit
from supervisor.diagnosis.prefixes import local_seconds_of_year
from supervisor.diagnosis.signatures import Trust

_SURVIVED_CONFIDENCE = 0.3
_KILLED_WORKER = "dataloader_killed_memory"
_MOST_HANG_EVIDENCE = 5
_ECHOES = frozenset({"RuntimeError", "ConnectionError", "OSError"})
_KERNEL_LATE_S = 300.0
_KERNEL_EARLY_S = 3600.0


def judge(case: Case) -> Diagnosis:
    """The verdict; `decided_by` is `none` when nothing speaks of a failure."""
    clues = _with_exit_times(case)
    ended = exit_rules.first_telling(case.exits, case.stopped_by_us)
    if case.exits and ended is None and case.hang is None and all(e.exit_code == 0 for e in case.exits):
        return no_failure(case)
    for rung in (
        _by_kernel,
        _by_own_error,
        _by_live_end,
        _by_hang,
        _by_soft,
        _by_reported_end,
        _by_launcher_end,
        _by_silent_end,
        _by_symptom,
        _by_survived,
    ):
        found = rung(case, clues, ended)
        if found is not None:
            return found
    return no_failure(case)


_Ended = tuple[RankExit, ExitRule] | None


def _by_kernel(case: Case, clues: list[Clue], _ended: _Ended) -> Diagnosis | None:
    kernel = [clue for clue in clues if clue.signature.trust is Trust.KERNEL]
    job = [clue.at for clue in clues if clue.signature.trust is not Trust.KERNEL and clue.at is not None]
    if case.failed_at is not None:
        job = [local_seconds_of_year(case.failed_at)]
    if job:
        first = min(job)
        near = [c for c in kernel if c.at is None or first - _KERNEL_EARLY_S <= c.at <= first + _KERNEL_LATE_S]
        kernel = near or [clue for clue in kernel if clue.signature.fatal]
    if not kernel:
        return None
    fatal_first = sorted(kernel, key=lambda clue: (not clue.signature.fatal, clue.order))
    return from_clue(case, fatal_first[0], clues)


def _by_own_error(case: Case, clues: list[Clue], ended: _Ended) -> Diagnosis | None:
    alive = [clue for clue in clues if not clue.is_survived]
    local = [clue for clue in alive if clue.signature.trust is Trust.LOCAL]
    python = _last_of_each_rank([clue for clue in alive if clue.signature.trust is Trust.PYTHON])
    if not local and not python:
        return None
    best = _earliest(local or python)
    if not local and ended is not None and _ended_before(best, ended):
        return None
    if case.is_live and best.signature.name == _KILLED_WORKER:
        return _killed_worker(from_clue(case, best, clues))
    return _storage_then_damage(from_clue(case, best, clues), clues)


def _by_live_end(case: Case, clues: list[Clue], ended: _Ended) -> Diagnosis | None:
    if ended is None or ended[1].is_symptom or ended[1].reason == UNKNOWN:
        return None
    return from_rule(case, ended[1], clues, rank=ended[0].rank, node=ended[0].node)


def _by_hang(case: Case, clues: list[Clue], _ended: _Ended) -> Diagnosis | None:
    if case.hang is None:
        return None
    reading = read_hang(case.hang, case.world_size)
    nodes = {node_of(case, rank) for rank in reading.ranks}
    proofs = [EvidenceLine(str(Path(case.hang.folder, name)), 1, text) for name, text in reading.proofs]
    return Diagnosis(
        reading.reason,
        reading.action,
        reading.confidence,
        reading.explanation,
        reading.suggestion,
        f"signature:{reading.name}",
        node=next(iter(nodes)) if len(nodes) == 1 and reading.may_be_the_node else None,
        rank=reading.rank,
        also_seen=also_seen(reading.reason, clues),
        symptom_notes=symptom_notes(reading.reason, clues),
        evidence=(*proofs, *(clue.where for clue in clues))[:_MOST_HANG_EVIDENCE],
    )


def _by_soft(case: Case, clues: list[Clue], _ended: _Ended) -> Diagnosis | None:
    soft = [clue for clue in clues if clue.signature.trust is Trust.SOFT]
    is_failed = bool(case.exits or _reported(case)) or any(
        clue.signature.is_symptom and clue.signature.service is None for clue in clues
    )
    if not soft or (not is_failed and all(clue.is_survived for clue in soft)):
        return None
    setting = [clue for clue in clues if clue.signature.trust is Trust.SETTING]
    best = _earliest(soft)
    if setting and best.signature.reason.startswith("NCCL"):
        best = setting[0]
    return from_clue(case, best, clues)


def _by_reported_end(case: Case, clues: list[Clue], _ended: _Ended) -> Diagnosis | None:
    for reported, where, rule in _reported(case):
        if not rule.is_symptom and rule.reason != UNKNOWN:
            node = reported.node or node_of(case, reported.rank)
            rank = reported.rank if reported.rank is not None else reported.local_rank
            return from_rule(case, rule, clues, rank=rank, node=node, where=where)
    return None


def _by_launcher_end(case: Case, clues: list[Clue], ended: _Ended) -> Diagnosis | None:
    """The launcher itself was killed or could not start; torchrun returns 1 whatever its ranks did."""
    code = case.launcher_exit
    rule = None if code is None else exit_rules.rule_for(code, is_live=True, is_one_of_many=False)
    if ended is not None or rule is None or rule.reason == UNKNOWN:
        return None
    found = from_rule(case, rule, clues, rank=None, node=None)
    return replace(found, explanation=f"The launcher itself ended with {code}. {found.explanation}")


def _by_silent_end(case: Case, clues: list[Clue], _ended: _Ended) -> Diagnosis | None:
    """Where others complain of a peer, the rank that ended with an error and without a word is that peer."""
    speaking = {clue.rank for clue in clues if clue.signature.trust in {Trust.PEER, Trust.WATCHDOG}} - {None}
    if not speaking:
        return None
    silent = exit_rules.first_telling([e for e in case.exits if e.rank not in speaking], case.stopped_by_us)
    if silent is not None:
        return from_rule(case, silent[1], clues, rank=silent[0].rank, node=silent[0].node)
    for reported, where, rule in _reported(case):
        rank = reported.rank if reported.rank is not None else reported.local_rank
        is_abort = reported.code in {-signal.SIGABRT, None}
        if not case.exits and rank is not None and rank not in speaking and not is_abort:
            return from_rule(case, rule, clues, rank=rank, node=reported.node, where=where)
    return None


def _by_symptom(case: Case, clues: list[Clue], ended: _Ended) -> Diagnosis | None:
    for trust in (Trust.PEER, Trust.WATCHDOG):
        of_trust = [clue for clue in clues if clue.signature.trust is trust and not clue.is_survived]
        if of_trust:
            setting = [clue for clue in clues if clue.signature.trust is Trust.SETTING]
            return _from_symptoms(case, setting or of_trust, clues)
    unexplained = _unexplained_end(case, clues, ended)
    if unexplained is not None and unexplained.reason == UNKNOWN:
        return unexplained
    cleanup = [clue for clue in clues if clue.signature.trust is Trust.CLEANUP and not clue.is_survived]
    if cleanup:
        return from_clue(case, cleanup[0], clues, names_culprit=False)
    if unexplained is not None:
        return unexplained
    wrapper = [clue for clue in clues if clue.signature.trust is Trust.WRAPPER and clue.signature.service is None]
    return from_clue(case, wrapper[0], clues) if wrapper else None


def _by_survived(case: Case, clues: list[Clue], _ended: _Ended) -> Diagnosis | None:
    own = [clue for clue in clues if clue.is_survived and clue.signature.trust in {Trust.LOCAL, Trust.PYTHON}]
    if not own:
        return None
    return replace(from_clue(case, own[-1], clues), confidence=_SURVIVED_CONFIDENCE)


def _unexplained_end(case: Case, clues: list[Clue], ended: _Ended) -> Diagnosis | None:
    if ended is not None:
        return from_rule(case, ended[1], clues, rank=ended[0].rank, node=ended[0].node)
    for reported, where, rule in sorted(_reported(case), key=lambda entry: entry[2].is_symptom):
        rank = reported.rank if reported.rank is not None else reported.local_rank
        return from_rule(case, rule, clues, rank=rank, node=reported.node, where=where)
    return None


def _reported(case: Case) -> list[tuple[ReportedExit, EvidenceLine, ExitRule]]:
    """The ends that launchers report, in order, with their meaning; a bare kill by DeepSpeed counts as a SIGKILL."""
    told = [(reported, where) for f in case.findings for reported, where, _ in f.exits]
    coded = [(reported, where) for reported, where in told if reported.code is not None]
    found: list[tuple[ReportedExit, EvidenceLine, ExitRule]] = []
    for reported, where in coded or told:
        code = -9 if reported.code is None else reported.code
        rule = exit_rules.rule_for(code, is_live=case.is_live, is_one_of_many=False)
        if rule is not None and not (case.is_live and reported.code is None):
            found.append((reported, where, rule))
    return found


def _with_exit_times(case: Case) -> list[Clue]:
    """All clues in order; an exception without a time of its own happened when its rank ended."""
    ended_at = {e.rank: e.at for e in case.exits if e.exit_code}
    clues = [clue for findings in case.findings for clue in findings.clues]
    dated = [
        replace(clue, epoch=ended_at[clue.rank]) if clue.epoch is None and clue.rank in ended_at else clue
        for clue in clues
    ]
    return sorted(dated, key=lambda clue: clue.order)


def _last_of_each_rank(python: list[Clue]) -> list[Clue]:
    """Of the exceptions of one rank in one log the last ended it; those before it were handled."""
    last: dict[tuple[str, int | None], Clue] = {}
    for clue in python:
        last[(clue.where.file, clue.rank)] = clue
    return list(last.values())


def _earliest(clues: list[Clue]) -> Clue:
    if all(clue.epoch is not None for clue in clues):
        return min(clues, key=lambda clue: (clue.epoch or 0.0, clue.order))
    if all(clue.at is not None for clue in clues):
        return min(clues, key=lambda clue: (clue.at or 0.0, clue.order))
    return min(clues, key=lambda clue: clue.order)


def _ended_before(best: Clue, ended: tuple[RankExit, ExitRule]) -> bool:
    """True when another rank was killed or crashed before the exception, which then is its echo."""
    one, rule = ended
    if rule.is_symptom or rule.reason == UNKNOWN or one.rank == best.rank or best.signature.reason not in _ECHOES:
        return False
    return one.at is not None and best.epoch is not None and one.at <= best.epoch


def _killed_worker(diagnosis: Diagnosis) -> Diagnosis:
    """With the kernel's log at hand and no word of memory in it, the worker was killed by something else."""
    return replace(
        diagnosis,
        reason="DataloaderKilled",
        action=Action.RESTART_SAME,
        confidence=0.5,
        explanation="A dataloader worker was killed from outside; no kernel line speaks of memory running out.",
        suggestion="Restart; when it repeats, use fewer workers or less prefetch and watch the host's memory.",
    )


def _storage_then_damage(diagnosis: Diagnosis, clues: list[Clue]) -> Diagnosis:
    """A full storage that left a damaged checkpoint behind needs more than waiting: the step before it."""
    damaged = any(clue.signature.reason == "CheckpointCorruption" for clue in clues)
    if diagnosis.reason != "S3StorageError" or not damaged:
        return diagnosis
    extra = " It left a damaged checkpoint behind: resume from the one before it."
    return replace(diagnosis, action=Action.ROLLBACK, suggestion=diagnosis.suggestion + extra)


def _from_symptoms(case: Case, symptoms: list[Clue], clues: list[Clue]) -> Diagnosis:
    """Nothing but symptoms: the one that says most, with what the time-outs of all ranks say together."""
    telling = sorted(symptoms, key=lambda clue: (clue.signature.reason == "NCCLRemoteError", clue.order))
    diagnosis = from_clue(case, telling[0], clues, names_culprit=False)
    if telling[0].signature.trust is not Trust.WATCHDOG:
        return diagnosis
    parsed = [parse_timeout(clue.where.text, clue.rank) for clue in symptoms]
    speaking = [clue.rank for clue in symptoms if clue.rank is not None]
    reading = read_timeouts([t for t in parsed if t is not None], speaking, case.world_size or len(case.exits) or None)
    text = f"{diagnosis.explanation} {reading.note}".strip()
    if reading.is_frozen:
        text = (
            "The watchdog itself did not run for hours: the host or the process was frozen or suspended. "
            + reading.note
        )
        return replace(diagnosis, reason="NodeFailure", explanation=text, decided_by="signature:watchdog_frozen")
    if reading.is_mismatch:
        return replace(
            diagnosis,
            reason="RuntimeError",
            action=Action.FIX_USER,
            explanation="Ranks wait in different collectives under one number: they run different code.",
            suggestion="Look at code that depends on the rank; TORCH_DISTRIBUTED_DEBUG=DETAIL names the calls.",
            decided_by="signature:collective_mismatch",
        )
    if len(reading.missing_ranks) == 1:
        rank = reading.missing_ranks[0]
        return replace(diagnosis, explanation=text, rank=rank, node=node_of(case, rank))
    return replace(diagnosis, explanation=text)
