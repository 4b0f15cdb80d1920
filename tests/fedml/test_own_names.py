"""FedML's own names do the same with the plugin as without it (see ``programs/own_names.py``)."""

import json
from pathlib import Path

import pytest

OURS = {"FedNNNN", "Momentum", "NormNorm", "PaperFedAvg", "PaperFedProx"}
OURS |= {"FedExP", "FedAdam", "FedYogi"}
PROGRAM = Path(__file__).parent / "programs" / "own_names.py"


@pytest.mark.slow
def test_fedmls_names_are_unchanged_by_the_plugin(fedml_alone, tmp_path) -> None:
    started, found = {}, {}
    for plugin in ("off", "on", "unknown", "aggregator"):
        (tmp_path / plugin).mkdir()
        started[plugin] = fedml_alone.start(PROGRAM, plugin, folder=tmp_path / plugin)
    for plugin, process in started.items():
        done = process.wait()
        assert done.returncode == 0, done.stderr
        found[plugin] = json.loads(done.stdout.splitlines()[-1])
    off, on, unknown = (found[plugin] for plugin in ("off", "on", "unknown"))

    for what in ("trained", "unknown method", "unknown command"):
        assert off[what] == on[what] == unknown[what], what
    for what in ("registries", "help"):
        assert unknown[what] == off[what], what
    assert on["help"].startswith(off["help"])
    [line] = on["help"].removeprefix(off["help"]).strip().splitlines()
    assert "fedml run RECIPE.yaml" in line
    for without, with_plugin in zip(off["registries"], on["registries"], strict=True):
        assert not OURS & set(without)
        assert set(with_plugin) == set(without) | OURS
    # Turned off it stays off where our aggregator is used.
    patched = [found[plugin]["patched"] for plugin in ("off", "aggregator", "on")]
    assert patched == [False, False, True]
