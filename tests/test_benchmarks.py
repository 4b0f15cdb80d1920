"""Each benchmark loads and takes the options that ``python benchmarks`` gives it."""

import runpy
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from fednnnn_plugin.assembly import executors
from fednnnn_plugin.client.step_graphs import StepGraphs
from fednnnn_plugin.data.federated import load_federated
from fednnnn_plugin.recipe.data_spec import data_spec

from .client.test_step_graphs import Captured
from .tiny import Tiny

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


@pytest.mark.parametrize("name", ["fedml_fedavg", "plain_loop", "staged"])
def test_contenders_make_all_steps(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each epoch of each client's samples, as ours does."""
    if name == "fedml_fedavg":
        pytest.importorskip("fedml")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import contenders

    recipe = contenders.settings("digits_noniid_b", 2, "fp32", tmp_path)
    data = load_federated(replace(data_spec(recipe), num_clients=20))
    data = replace(data, client_indices=data.client_indices[:2])
    seen, made = list[int](), contenders.create_model("nnnn_digits", 0)
    made.register_forward_hook(lambda net, given, _: seen.append(net.training * len(given[0])))
    monkeypatch.setattr(contenders, "create_model", lambda *_: made)
    how = {"staged": True} if name == "staged" else {}
    make = contenders.plain_loop if how else getattr(contenders, name)
    make(recipe, data, torch.device("cpu"), **how)()
    assert sum(seen) == recipe.train_args.epochs * sum(map(data.client_size, range(2)))


class ThreeStreams:
    """Three slots, which compute at once; their graphs run again what they captured."""

    count = 3

    def __init__(self) -> None:
        self.said: list[object] = []
        self.captured: list[Captured] = []
        self.begin, self.end = (partial(self.said.append, word) for word in ("begin", "end"))

    def on(self, slot: int) -> AbstractContextManager[None]:
        self.said.append(slot)
        return nullcontext()

    def graphs(self, slot: int) -> StepGraphs:
        self.captured.append(captured := Captured())
        return StepGraphs(lambda: captured)


def test_slots_have_the_bits_of_clients_alone(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever slot they train in."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import slots

    streams = ThreeStreams()
    monkeypatch.setattr(slots, "Streams", lambda: streams)
    monkeypatch.setattr(executors, "make_together", slots.TrainInSlots)
    for run, batching in (("alone", "off"), ("slots", 4)):
        tiny(run, client_batching=batching, client_num_per_round=4, comm_round=2, epochs=2)
    torch.testing.assert_close(tiny.model("slots"), tiny.model("alone"), rtol=0, atol=0)
    assert set(streams.said) == {"begin", 0, 1, 2, "end"}
    assert any(each.launches for each in streams.captured)
