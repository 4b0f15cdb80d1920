"""FedML's own names do the same with the plugin as without it (see ``programs/own_names.py``)."""

import json
import shutil
from pathlib import Path

import pytest

OURS = {"FedNNNN", "Momentum", "NormNorm", "PaperFedAvg", "PaperFedProx"}
OURS |= {"FedExP", "FedAdam", "FedYogi"}
HERE = Path(__file__).parent


@pytest.mark.slow
def test_fedmls_names_are_unchanged_by_the_plugin(scripts, fedml_alone, tmp_path) -> None:
    for path in ("programs/own_names.py", "examples/own_data_and_model.py"):
        shutil.copy(HERE / path, tmp_path)
    words = ("own_names.py", "--cf", HERE / "examples" / "simulation.yaml")
    kinds = {"off": fedml_alone, "on": scripts, "unknown": fedml_alone}
    started = [kinds[kind].start(*words, kind, folder=tmp_path) for kind in kinds]
    ended = [process.wait() for process in started]
    assert {done.returncode for done in ended} == {0}, [done.stderr for done in ended]
    off, on, unknown = (json.loads(done.stdout.splitlines()[-1]) for done in ended)

    for what in ("trained", "unknown method"):
        assert off[what] == on[what] == unknown[what], what
    for what in ("registries", "help"):
        assert unknown[what] == off[what], what
    assert on["help"].startswith(off["help"])
    [line] = on["help"].removeprefix(off["help"]).strip().splitlines()
    assert "fedml run RECIPE.yaml" in line
    for without, with_plugin in zip(off["registries"], on["registries"], strict=True):
        assert not OURS & set(without)
        assert set(with_plugin) == set(without) | OURS
    assert [off["patched"], on["patched"]] == [False, True]
