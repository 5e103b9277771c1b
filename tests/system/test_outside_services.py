# SPDX-License-Identifier: Apache-2.0
"""An outside service that is away is neither a bad node nor a script's bug: training goes on without it."""

from __future__ import annotations

import sys

import pytest

from tests.system.supervised import SCRIPTS, Supervised

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]


def test_a_metrics_service_that_is_away_is_switched_off_and_the_run_succeeds(supervised: Supervised) -> None:
    script = SCRIPTS / "outside" / "logs_to_wandb.py"

    assert supervised.run(sys.executable, str(script)) == 0, supervised.output

    first, second = supervised.launches()
    assert ("WANDB_MODE", "offline") in second.environment and first.environment == ()
    assert "wandb failed; the relaunch does without it (WANDB_MODE=offline)" in supervised.output
    assert supervised.status["environment"] == {"WANDB_MODE": "offline"}
    assert supervised.status["interventions"] == 0
