"""Each benchmark loads and takes the options that ``python benchmarks`` gives it."""

import runpy
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.mark.slow
def test_benchmarks_load_and_take_their_options(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setenv("FEDNNNN_DATA", str(tmp_path))
    paths = [path for path in BENCHMARKS.glob("*.py") if "def main" in path.read_text()]
    commands = {path.name: runpy.run_path(str(path), run_name="loaded") for path in paths}
    scripts = commands.pop("__main__.py")["SCRIPTS"] | {"gpu.py": ("",)}
    for script, options in scripts.items():
        name, *words = script.split()
        for given in options:
            commands[name]["main"].make_context(name, [*words, *given.split()])
    assert {script.split()[0] for script in scripts} == commands.keys()
