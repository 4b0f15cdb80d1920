"""FedML's own names do the same with the plugin as without it (see ``own_behaviour.py``)."""

import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).with_name("own_behaviour.py")
SAME = (
    *("trained", "unknown method", "unknown model", "model"),
    *("data", "no command", "commands", "options"),
)
OURS = {"FedNNNN", "Momentum", "NormNorm", "PaperFedAvg", "PaperFedProx"}
OURS |= {"FedExP", "FedAdam", "FedYogi"}


@pytest.fixture(scope="module")
def behaviours(start_scripts, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict]:
    """What FedML does without the plugin, with it, and with it in a version that we do not know."""
    modules = ("fedml.cli.modules.run", "fedml.simulation.simulator", "fedml.data.data_loader")
    scripts = start_scripts(*modules, FEDNNNN_PLUGIN_DISABLE="1")
    folder, found = tmp_path_factory.mktemp("own"), {}
    for plugin in ("off", "on", "unknown", "aggregator"):
        done = scripts.run(PROGRAM, plugin, folder=folder)
        assert done.returncode == 0, done.stderr
        found[plugin] = json.loads(done.stdout.splitlines()[-1])
    scripts.close()
    return found


@pytest.mark.parametrize("what", SAME)
@pytest.mark.parametrize("plugin", ["on", "unknown"])
def test_it_is_the_same(behaviours: dict[str, dict], plugin: str, what: str) -> None:
    assert behaviours["off"][what]
    assert behaviours[plugin][what] == behaviours["off"][what]


def test_the_optimizer_lists_keep_what_they_had_and_gain_ours(behaviours) -> None:
    pairs = zip(behaviours["off"]["registries"], behaviours["on"]["registries"], strict=True)
    for without, with_plugin in pairs:
        assert not OURS & set(without["names"])
        assert set(with_plugin["names"]) == set(without["names"]) | OURS
        assert with_plugin["before"] == without["before"]


def test_the_help_of_fedml_run_gains_one_line(behaviours) -> None:
    off, on = behaviours["off"]["help"], behaviours["on"]["help"]
    assert on.startswith(off)
    [line] = on.removeprefix(off).strip().splitlines()
    assert "fedml run RECIPE.yaml" in line


def test_an_unknown_version_gains_nothing(behaviours) -> None:
    for what in ("registries", "help"):
        assert behaviours["unknown"][what] == behaviours["off"][what]


def test_turned_off_it_stays_off_where_our_aggregator_is_used(behaviours) -> None:
    patched = [behaviours[plugin]["patched"] for plugin in ("off", "aggregator", "on")]
    assert patched == [False, False, True]
