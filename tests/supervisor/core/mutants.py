# SPDX-License-Identifier: Apache-2.0
"""Planted bugs: each a small change of the core that breaks a promise, and each must make a test of the core fail."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    file: str
    old: str
    """Occurs exactly once in the file."""
    new: str
    breaks: str


MUTANTS = (
    Mutant(
        "machine.py",
        'if getattr(event, "attempt", state.attempt) != state.attempt:',
        'if getattr(event, "attempt", state.attempt) > state.attempt:',
        "events of an older attempt count",
    ),
    Mutant(
        "machine.py",
        "if state.is_final and not isinstance(event, e.RunSubmitted):",
        "if state.phase is Phase.SUCCEEDED and not isinstance(event, e.RunSubmitted):",
        "an abandoned run comes to life again",
    ),
    Mutant(
        "machine.py",
        "if state is not None and not state.is_final:",
        "if state is not None and state.phase is Phase.TRAINING:",
        "a second submission launches a second attempt",
    ),
    Mutant(
        "machine.py",
        "    is_late = state.phase is Phase.TRAINING and state.step is None\n",
        "    is_late = False\n",
        "what an attempt with slow imports restored is never known",
    ),
    Mutant(
        "machine.py",
        "Launch(max(known, event.newest_attempt) + 1)",
        "Launch(known + 1)",
        "an attempt number that the store knows is used again",
    ),
    Mutant(
        "machine.py",
        "    if left_alive:\n",
        "    if left_alive and policy.can_probe:\n",
        "a run that was left alive gets a second attempt beside it",
    ),
    Mutant(
        "machine.py",
        "return replace(state, deadline=event.at + allowance), ()",
        "return state, ()",
        "an absence of the controller is taken for silence of a healthy job",
    ),
    Mutant(
        "machine.py",
        "Phase.STOPPING: policy.finish_grace_s + policy.evidence_s + policy.stop_s,",
        "",
        "an absence of the controller cuts a stop short",
    ),
    Mutant(
        "machine.py",
        "    if not isinstance(state.pending, Launch):\n        return failures.on_part_not_launched",
        "    if state.attached:\n        return failures.on_part_not_launched",
        "a run is given up while one of its nodes is training",
    ),
    Mutant(
        "machine.py",
        "        deadline=event.at + policy.report_silence_s,\n",
        "",
        "a sample does not renew the deadline",
    ),
    Mutant(
        "machine.py",
        "    if failure is not None and failure.attempt < state.attempt:",
        "    if failure is not None:",
        "a sample closes the incident of its own attempt",
    ),
    Mutant(
        "machine.py",
        "not is_same or known.healthy is False",
        "not is_same",
        "an unhealthy checkpoint becomes healthy again",
    ),
    Mutant(
        "machine.py",
        "if state.phase is Phase.STOPPING or state.waiting_for is WaitFor.ENDING:",
        "if state.phase is Phase.STOPPING:",
        "an attempt that ends late is never answered",
    ),
    Mutant(
        "machine.py",
        "return waiting(state, at + policy.person_s, WaitFor.ENDING, urgent(text, state.incident))",
        "return diagnosing(state, at, policy, urgent(text, state.incident))",
        "a new attempt is launched while the old one may be alive",
    ),
    Mutant(
        "machine.py",
        "return answers.relaunch(state, at, policy, state.relaunch, 0.0)",
        "return launching(state, at, policy, state.relaunch)",
        "a frozen run relaunches when its wait is over",
    ),
    Mutant(
        "transitions.py",
        "    state = _going_back(state, launch)\n",
        "",
        "a failure after a rollback resumes from what was given up",
    ),
    Mutant(
        "transitions.py",
        "    launch = _with_healthy_resume(state, launch)\n",
        "",
        "a checkpoint that turned out unhealthy during the wait is resumed from",
    ),
    Mutant(
        "transitions.py",
        "if c.healthy is not False\n",
        "if c.healthy is not None\n",
        "unhealthy checkpoints are resumed from",
    ),
    Mutant(
        "transitions.py",
        "c.step <= resume_step or c.healthy is False",
        "c.step <= resume_step",
        "a rollback forgets which checkpoints are unhealthy",
    ),
    Mutant(
        "transitions.py",
        "pending=state.pending if waiting_for is WaitFor.ENDING else None,",
        "pending=None,",
        "an attempt that does not stop is no longer told to",
    ),
    Mutant(
        "transitions.py",
        "deadline=at + stop.grace_s + evidence + policy.stop_s,",
        "deadline=float('inf'),",
        "a stop may take for ever",
    ),
    Mutant(
        "transitions.py",
        "key=lambda c: (c.step, c.attempt)",
        "key=lambda c: (c.attempt, c.step)",
        "the newest checkpoint is not the one of the largest step",
    ),
    Mutant(
        "failures.py",
        "    if has_open_failure(state):\n        return unchanged(state)\n",
        "",
        "one failure opens several incidents",
    ),
    Mutant(
        "failures.py",
        "Grant.TELL if state.attached else policy.grant(power, frozen=state.frozen)",
        "policy.grant(power, frozen=state.frozen)",
        "a launch that is only watched is stopped",
    ),
    Mutant(
        "failures.py",
        "policy.grant(power, frozen=state.frozen)",
        "policy.grant(power)",
        "a frozen run is stopped",
    ),
    Mutant(
        "failures.py",
        "state.deadline - policy.startup_s, detail)",
        "at, detail)",
        "the start of a failed launch is said to be when it was noticed",
    ),
    Mutant(
        "failures.py",
        "    return replace(state, deadline=at + policy.person_s), (urgent(text, state.incident),)\n",
        "    return state, ()\n",
        "a person who was asked once is never asked again",
    ),
    Mutant(
        "failures.py",
        "policy.stop_grace_s, evidence)",
        "policy.stop_grace_s, False)",
        "a hung attempt is killed without its stacks",
    ),
    Mutant(
        "failures.py",
        "if is_silent(failure) else ()",
        "if not is_silent(failure) else ()",
        "stacks are kept of a spike and not of a hang",
    ),
    Mutant(
        "answers.py",
        "max(state.attempt, newest_attempt, state.relaunch.attempt - 1 if state.relaunch else 0) + 1",
        "state.attempt + 1",
        "the store's newer attempts are forgotten at a relaunch",
    ),
    Mutant(
        "answers.py",
        "if len(recent) > window.count:",
        "if len(recent) > window.count + 1:",
        "one more failure than the budget allows",
    ),
    Mutant(
        "answers.py",
        "p.category is last.category and p.at",
        "p.at",
        "failures of other categories use up a budget",
    ),
    Mutant(
        "answers.py",
        "        past=(*state.past, past)[-remembered:],\n",
        "",
        "budgets remember nothing",
    ),
    Mutant(
        "answers.py",
        "    if not any(p.trained for p in row):\n",
        "    if not any(p.step for p in row):\n",
        "a script without steps is given up as if it never started",
    ),
    Mutant(
        "answers.py",
        "(p.reason, p.step) == (last.reason, last.step)",
        "p.step == last.step",
        "another failure at the same step counts as the same",
    ),
    Mutant(
        "answers.py",
        " and progressed and not repeated",
        " and progressed",
        "an exit that nothing explains is tried for ever",
    ),
    Mutant(
        "answers.py",
        "progressed = now.step is not None and now.trained and state.tries_without_progress == 0",
        "progressed = True",
        "an exit that nothing explains is tried again before the first step",
    ),
    Mutant(
        "answers.py",
        "    if verdict.action is Action.FIX_USER:\n",
        "    if verdict.action is Action.FIX_USER and state.attached:\n",
        "a script bug is retried",
    ),
    Mutant(
        "answers.py",
        "cordons = tuple(Cordon(n, reason) for n in fresh) if grant is Grant.ACT else ()",
        "cordons = tuple(Cordon(n, reason) for n in fresh)",
        "nodes are cordoned without the power to",
    ),
    Mutant(
        "answers.py",
        "    if len(excluded) > policy.spare_nodes:\n",
        "    if len(excluded) > policy.spare_nodes + 1:\n",
        "a launch is ordered for which no nodes are left",
    ),
    Mutant(
        "answers.py",
        "uncordoned=(*state.uncordoned, *cordons), ",
        "",
        "a cordon that failed once is never tried again",
    ),
    Mutant(
        "answers.py",
        "if state.rollbacks >= policy.most_rollbacks:",
        "if state.rollbacks > policy.most_rollbacks:",
        "one rollback more than allowed",
    ),
    Mutant(
        "answers.py",
        "launch, 0.0, told, power=Power.ROLLBACK)",
        "launch, 0.0, told)",
        "a rollback needs the power to relaunch only",
    ),
    Mutant(
        "answers.py",
        "    if state.tries_without_progress == 0:\n",
        "    if state.tries_without_progress >= 0:\n",
        "relaunches without progress follow each other at once",
    ),
    Mutant(
        "spikes.py",
        "failure.step - max(1, policy.rollback_margin_steps)",
        "failure.step",
        "the rollback keeps the step at which the loss jumped",
    ),
    Mutant(
        "spikes.py",
        "merge((*state.skipped, skip))",
        "(skip,)",
        "batches that were left out come back",
    ),
    Mutant(
        "spikes.py",
        "    if returned or policy.skip_first:\n",
        "    if policy.skip_first:\n",
        "a spike that comes back is replayed for ever",
    ),
    Mutant(
        "spikes.py",
        "    if position <= end + policy.same_place_batches:\n",
        "    if position <= case.onset_position:\n",
        "a spike is settled before its batches are behind",
    ),
    Mutant(
        "orders.py",
        "    if state.phase is Phase.STOPPING and again:\n",
        "    if state.phase is Phase.STOPPING and again and state.frozen:\n",
        "a second Ctrl-C does not stop at once",
    ),
    Mutant(
        "orders.py",
        "        state = replace(state, is_left_alive=True)\n",
        "        pass\n",
        "that an attempt was left alive is forgotten",
    ),
    Mutant(
        "orders.py",
        "policy.grant(proposal.power) is Grant.ACT",
        "True",
        "thawing grants a power",
    ),
    Mutant(
        "orders.py",
        "    ordered = replace(state, skipped=launch.skipped, excluded=launch.excluded)\n",
        "    ordered = state\n",
        "what was skipped by order is forgotten at the next failure",
    ),
    Mutant(
        "orders.py",
        "save and state.step is not None and state.failure is None",
        "save and state.step is not None",
        "a hung attempt is asked to finish its step",
    ),
    Mutant(
        "orders.py",
        "newest_launch(state) if state.relaunch is None else state.relaunch",
        "newest_launch(state)",
        "an order undoes the rollback that waits for approval",
    ),
    Mutant(
        "transitions.py",
        "return not state.checkpoints or reached <= policy.rollback_margin_steps",
        "return True",
        "a run of weeks starts from nothing by itself",
    ),
    Mutant(
        "codec.py",
        '{"type": type(value).__name__, **fields}',
        '{**fields, "kind": type(value).__name__, "type": type(value).__name__}',
        "a field named kind is lost on the way to the journal",
    ),
    Mutant(
        "accounting.py",
        "                self._cut(event.step)\n",
        "                pass\n",
        "steps that are trained again count twice",
    ),
    Mutant(
        "incidents.py",
        "if before.failure.attempt == after.attempt:",
        "if before.failure.attempt != after.attempt:",
        "a recovery is taken for a false alarm",
    ),
)
