# SPDX-License-Identifier: Apache-2.0
"""Log lines of the frameworks as they print them, and what is read from each."""

from __future__ import annotations

import math
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.detection.api import PatternError, StepParser, StepReading, custom_pattern

MEGATRON = (
    " [2024-05-01 10:00:00] iteration       10/  500000 | consumed samples:        20480 | "
    "consumed tokens:     41943040 | elapsed time per iteration (ms): 1234.5 | learning rate: 1.000000E-05 | "
    "global batch size:  2048 | lm loss: 1.084321E+01 | loss scale: 1.0 | grad norm: 2.345 | "
    "number of skipped iterations:   0 | number of nan iterations:   0 |"
)
TITAN = (
    "[titan] 2025-01-01 12:00:00,000 - root - INFO - \x1b[31mstep: 10  \x1b[32mloss:  7.1234  "
    "\x1b[38;2;180;60;0mgrad_norm:  1.2345  \x1b[38;2;54;234;195mmemory:  1.28GiB(1.35%)  \x1b[34mtps: 1,234\x1b[39m"
)
BAR = "  1%|▏         | 12/1000 [00:10<14:00,  1.17it/s]"
DEEPSPEED = (
    "[2024-01-01 12:00:00,000] [INFO] [logging.py:96:log_dist] [Rank 0] "
    "step=10, skipped=0, lr=[0.001], mom=[(0.9, 0.999)]"
)

LINES = [
    ("megatron", MEGATRON, (10, 10.84321, 2.345, 41943040.0)),
    ("torchtitan", TITAN, (10, 7.1234, 1.2345, None)),
    ("nanogpt", "iter 100: loss 2.3456, time 50.12ms, mfu 10.00%", (100, 2.3456, None, None)),
    (
        "hugging face",
        "{'loss': 2.3, 'grad_norm': 1.25, 'learning_rate': 5e-05, 'epoch': 0.1}",
        (None, 2.3, 1.25, None),
    ),
    ("hugging face", "{'loss': '2.3', 'grad_norm': 'inf', 'epoch': '0.1'}", (None, 2.3, math.inf, None)),
    ("progress bar", BAR, (12, None, None, None)),
    ("progress bar", "  1%|▏   | 12/1000 [00:10<14:00,  1.17s/it, loss=2.5]", (12, 2.5, None, None)),
    (
        "lightning",
        "Epoch 2:  12%|█▏   | 12/100 [00:01<00:07, 11.9it/s, v_num=0, train_loss=2.300]",
        (212, 2.3, None, None),
    ),
    (
        "lightning",
        "Epoch 1/9 ━━━━━━ 12/100 0:00:01 • 0:00:07 11.9it/s v_num: 0.000 train_loss: 2.300",
        (112, 2.3, None, None),
    ),
    ("deepspeed", DEEPSPEED, (10, None, None, None)),
    ("plain", "step 10 loss 2.31 norm 0.5", (10, 2.31, 0.5, None)),
    ("plain", "step:100/1750 train_loss:3.4012 train_time:1000ms", (100, 3.4012, None, None)),
    ("plain", "step   10/1000 | loss 10.912345 (+1.2z)| norm 1.2000 | lr 1e-4", (10, 10.912345, 1.2, None)),
    ("plain", "Step [100/2000], Loss: 0.25", (100, 0.25, None, None)),
    ("plain", "interval done, global_step=7, loss=.5", (7, 0.5, None, None)),
]


@pytest.mark.parametrize("prefix", ["", "[rank0]:", "[default0]:", "0: ", "\x1b[36m[rank3]: \x1b[0m"], ids=repr)
@pytest.mark.parametrize(("pattern", "line", "numbers"), LINES, ids=[line[:30] for _, line, _ in LINES])
def test_line_of_a_framework_is_read_with_any_launcher_prefix(
    pattern: str, line: str, numbers: tuple[int | None, float | None, float | None, float | None], prefix: str
) -> None:
    _, reading = StepParser().read(prefix + line)
    assert reading == StepReading(*numbers, pattern)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "loading the model",
        "validation loss at iteration 100 | lm loss value: 2.3E+00 | lm loss PPL: 9.9 |",
        "[titan] INFO - validate step: 10  loss:  7.1234",
        "step 250: train loss 2.1, val loss 2.2",
        "step:125/1750 val_loss:3.4 train_time:1000ms",
        "{'eval_loss': 2.3, 'eval_runtime': 1.0}",
        "Map:  10%|▏         | 100/1000 [00:10<14:00,  1.17it/s]",
        "Loading checkpoint shards: 50%|█████     | 2/4 [00:01<00:01,  1.1s/it]",
    ],
)
def test_other_line_is_not_read(line: str) -> None:
    assert StepParser().read(line) == (StepParser(), None)


@pytest.mark.parametrize(
    "line",
    [
        "iter 5: loss nan, time 50.12ms",
        "step: 5  loss:  nan  grad_norm:  nan",
        "Step [5/10], Loss: NaN",
        "iteration 5/ 10 | grad norm: nan | number of skipped iterations: 0 | number of nan iterations: 1 |",
    ],
)
def test_loss_of_nan_is_read_as_such(line: str) -> None:
    reading = StepParser().read(line)[1]
    assert reading is not None and reading.step == 5 and reading.loss is not None and math.isnan(reading.loss)


def test_megatron_line_without_its_loss_keeps_the_gradient_norm() -> None:
    line = MEGATRON.replace(" lm loss: 1.084321E+01 |", "").replace("grad norm: 2.345", "grad norm: nan")
    reading = StepParser().read(line)[1]
    assert reading is not None and reading.loss is None and reading.grad_norm is not None
    assert math.isnan(reading.grad_norm)


def test_loss_of_hugging_face_gets_the_step_of_the_training_bar_and_not_of_the_evaluation_bar() -> None:
    parser, _ = StepParser().read(BAR)
    parser, evaluation = parser.read("100%|██████████| 25/25 [00:10<00:00,  2.50it/s]")
    parser, reading = parser.read("{'loss': 2.3, 'epoch': 0.1}")
    assert evaluation is None
    assert reading == StepReading(12, 2.3, None, None, "hugging face")


def test_bar_that_is_redrawn_in_one_line_counts_by_its_last_part() -> None:
    parser, reading = StepParser().read(BAR + "\r" + BAR.replace("12/", "13/"))
    assert reading is not None and reading.step == 13 and parser.step == 13
    assert parser.read("\r" + BAR.replace("12/", "14/") + "{'loss': 1.5, 'epoch': 1}")[1] == StepReading(
        14, 1.5, None, None, "hugging face"
    )


def test_pattern_that_has_shown_a_loss_is_kept() -> None:
    parser, _ = StepParser().read(MEGATRON)
    assert parser.chosen is not None and parser.chosen.name == "megatron"
    assert parser.read("iter 100: loss 2.3456, time 50.12ms") == (parser, None)


def test_steps_without_loss_do_not_settle_the_pattern() -> None:
    parser, _ = StepParser().read(DEEPSPEED)
    assert parser.chosen is None
    assert parser.read("step 10 loss 2.31")[1] == StepReading(10, 2.31, None, None, "plain")


def test_expression_of_a_person_replaces_the_built_in_patterns() -> None:
    expression = r"upd=(?P<step>\d+) L=(?P<loss>\S+)(?: g=(?P<grad_norm>\S+))? n=(?P<tokens>\S+)"
    parser = StepParser(custom=custom_pattern(expression))
    assert parser.read("upd=3 L=nan? n=1") == (parser, None), "no number, so another kind of line"
    assert parser.read("upd=3 L=2.5 n=1,024")[1] == StepReading(3, 2.5, None, 1024.0, "custom")
    assert parser.read("step 10 loss 2.31")[1] is None


@pytest.mark.parametrize(
    ("expression", "told"),
    [
        (r"step (?P<step>\d+", r"missing \), unterminated subpattern at position 5"),
        (r"(?P<loss>\S+)", r"ends at position 13 without a group \(\?P<step>"),
        (
            r"(?P<step>\d+) (?P<los>\S+)",
            r"unknown group 'los' at position 14; allowed are step, loss, grad_norm, tokens",
        ),
    ],
)
def test_bad_expression_is_refused_with_itself_the_position_and_what_is_needed(expression: str, told: str) -> None:
    with pytest.raises(PatternError, match=told) as caught:
        custom_pattern(expression)
    assert repr(expression) in str(caught.value)


TEMPLATES = (
    "iteration {step}/ 100000 | lm loss: {loss} | grad norm: 1.0 |",
    "step: {step}  loss: {loss}  grad_norm: 1.0",
    "iter {step}: loss {loss}, time 1ms",
    "global_step={step} train/loss={loss}",
    "Step [{step}/100000], Loss: {loss}",
)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(TEMPLATES), st.integers(0, 10**6), st.floats(allow_nan=False), st.text(max_size=80))
def test_numbers_that_were_printed_are_read_back_from_any_log(
    template: str, step: int, loss: float, noise: str
) -> None:
    parser, _ = StepParser().read(noise.replace("\r", ""))
    reading = StepParser(step=parser.step).read(template.format(step=step, loss=loss))[1]
    assert reading is not None and (reading.step, reading.loss) == (step, loss)


@pytest.mark.parametrize(
    "piece", ["step 1 ", "loss ", "step 1 loss x ", "iteration 1/ 2 | lm loss ", "Epoch 1: 1%|", "[a]: "]
)
def test_hostile_line_is_given_up_soon(piece: str) -> None:
    line = piece * 2000
    began = time.process_time()
    assert StepParser().read(line)[1] is None or "iteration" in piece
    assert time.process_time() - began < 1.0
