"""FedML's own names do the same with the plugin as without it."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
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


def copy_of_fedml(folder: Path, version: str) -> Path:
    """Link FedML's files into ``folder`` under another version, and return ``folder``."""
    spec = importlib.util.find_spec("fedml")
    assert spec is not None
    assert spec.origin is not None
    original = Path(spec.origin)
    shutil.copytree(original.parent, folder / "fedml", copy_function=os.symlink)
    copied = folder / "fedml" / original.name
    copied.unlink()
    copied.write_text(
        original.read_text().replace('__version__ = "0.9.6"', f'__version__ = "{version}"')
    )
    return folder


@pytest.fixture(scope="module")
def behaviours(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict]:
    """What FedML does without the plugin, with it, and with it in a version that we do not know."""
    folder = tmp_path_factory.mktemp("own")
    settings = {
        "off": {"FEDNNNN_PLUGIN_DISABLE": "1"},
        "on": {},
        "unknown": {
            "PYTHONPATH": f"{copy_of_fedml(folder, '0.9.7')}:{os.environ.get('PYTHONPATH', '')}"
        },
    }
    return {
        name: json.loads(
            subprocess.run(
                [sys.executable, PROGRAM],
                stdout=subprocess.PIPE,
                cwd=folder,
                env=os.environ | {"HOME": str(folder)} | environment,
                check=True,
            ).stdout
        )
        for name, environment in settings.items()
    }


@pytest.mark.parametrize("plugin", ["on", "unknown"])
@pytest.mark.parametrize("what", SAME)
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
