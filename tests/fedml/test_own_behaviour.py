"""FedML's own names do the same with the plugin as without it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("own_behaviour.py")
OURS = {"FedNNNN", "Momentum", "NormNorm"}


@pytest.fixture(scope="module")
def behaviours(tmp_path_factory) -> tuple[dict, dict]:
    """What FedML does without the plugin, and with it."""
    folder = tmp_path_factory.mktemp("own")
    off, on = (
        subprocess.Popen(
            [sys.executable, PROGRAM],
            stdout=subprocess.PIPE,
            cwd=folder,
            env=os.environ | {"HOME": str(folder), "FEDNNNN_PLUGIN_DISABLE": disable},
        )
        for disable in ("1", "0")
    )
    return json.loads(off.communicate()[0]), json.loads(on.communicate()[0])


@pytest.mark.parametrize(
    "what",
    [
        "trained",
        "unknown method",
        "unknown model",
        "model",
        "data",
        "no command",
        "commands",
        "options",
    ],
)
def test_it_is_the_same(behaviours: tuple[dict, dict], what: str) -> None:
    off, on = behaviours
    assert off[what]
    assert on[what] == off[what]


def test_the_optimizer_lists_keep_what_they_had_and_gain_ours(behaviours) -> None:
    off, on = behaviours
    for without, with_plugin in zip(off["registries"], on["registries"], strict=True):
        assert not OURS & set(without["names"])
        assert set(with_plugin["names"]) == set(without["names"]) | OURS
        assert with_plugin["before"] == without["before"]


def test_the_help_of_fedml_run_gains_one_line(behaviours) -> None:
    off, on = behaviours
    assert on["help"].startswith(off["help"])
    [line] = on["help"].removeprefix(off["help"]).strip().splitlines()
    assert "fedml run RECIPE.yaml" in line
