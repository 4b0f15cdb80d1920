"""FedML's privacy, attacks and defences around our aggregator (see ``hook_scenarios.py``)."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from fednnnn_plugin.fedml.defences import ATTACKS, DEFENCES

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).with_name("hook_scenarios.py")
SCENARIOS = [
    *DEFENCES,
    *ATTACKS,
    "no client is finite",
    "byzantine and krum",
    "cdp gaussian",
    "cdp laplace",
    "cdp tied parameters",
    "cdp negative variance",
    "ldp",
]


@pytest.fixture(scope="session")
def outcomes() -> dict[str, str]:
    done = subprocess.run(
        [sys.executable, SCRIPT], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_in_a_process_of_its_own(outcomes, scenario: str) -> None:
    assert outcomes[scenario] == ""


def test_no_scenario_is_left_out(outcomes) -> None:
    assert outcomes.keys() == set(SCENARIOS)
