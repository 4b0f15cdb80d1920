"""Steps as CUDA graphs, by a stand-in: what it captures it runs again, on the same memory."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fednnnn_plugin.client.step_graphs import CudaCapture, StepGraphs
from fednnnn_plugin.server.layout import ModelState

from .test_group_sgd import SGD, Clients, Small

REFUSED = "operation not permitted when stream is capturing"


class Captured:
    """Notes what is captured and launched; may refuse, as of a step that waits for its GPU."""

    def __init__(self, refuses: str = "") -> None:
        self.refuses, self.captures, self.launches = refuses, 0, 0

    def __call__(self, step: Callable[[], None]) -> Callable[[], None]:
        if self.refuses:
            raise RuntimeError(self.refuses)
        self.captures += 1

        def launch() -> None:
            self.launches += 1
            step()

        return launch


def test_form_is_captured_at_its_second_step(caplog: pytest.LogCaptureFixture) -> None:
    """Capturing runs nothing: each step is run once."""
    ran: list[str] = []
    for refuses, launches in (("", 5), (REFUSED, 0)):
        ran.clear()
        captured = Captured(refuses)
        graphs = StepGraphs(lambda captured=captured: captured)  # type: ignore[misc]
        for form in "aababbca":
            graphs.run(form, lambda form=form: ran.append(form))  # type: ignore[misc]
        assert "".join(ran) == "aababbca"
        assert captured.launches == launches
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    graphs = StepGraphs(lambda: captured)
    for _ in range(2):
        graphs.run("a", ran.clear)
        graphs.clear()
    assert captured.captures == 0


def test_graphs_that_were_cleared_are_captured_anew() -> None:
    """By another capture: PyTorch has no use for a pool of which all graphs are gone."""
    begun = [Captured(), Captured()]
    graphs = StepGraphs(iter(begun).__next__)
    for _ in begun:
        for _ in range(3):
            graphs.run("a", lambda: None)
        graphs.clear()
    assert [(each.captures, each.launches) for each in begun] == [(1, 2)] * 2


def test_groups_of_other_sizes_keep_their_graphs() -> None:
    """Two clients with batches of 4, then three with batches of 2, none of which is the largest."""
    begun: list[Captured] = []
    clients = Clients(Small(), (9, 9, 2, 2, 2), SGD)
    clients.graphs = StepGraphs(lambda: begun.append(Captured()) or begun[-1])  # type: ignore[func-returns-value]
    group = clients.group()
    for _ in range(4):
        for orders in (clients.orders[:2], clients.orders[2:]):
            group.train(clients.served, orders)
    assert len(begun) == 2  # before and after there was memory for both


def test_end_of_memory_in_a_capture_is_raised() -> None:
    """A narrower group is captured; what cannot be is not."""
    graphs = StepGraphs(lambda: captured)
    captured = Captured("CUDA error: out of memory")
    graphs.run("a", lambda: None)
    with pytest.raises(RuntimeError, match="out of memory"):
        graphs.run("a", lambda: None)
    assert not graphs.refused


CHANGING = {"schedule": lambda number: 0.05, "learning_rate": 9.0}


@pytest.mark.parametrize("settings", [{"prox_mu": 0.3, "weight_decay": 5e-3}, CHANGING])
def test_group_by_graphs_is_as_one_by_one(settings: dict[str, Any]) -> None:
    """Of what a graph launches only the memory changes: other batches, another round's model.

    A learning rate that may change is not captured.
    """
    captured = Captured()
    clients = Clients(Small(), (9, 9, 7, 3), replace(SGD, **settings))
    alone_first = clients.one_by_one()
    clients.graphs = StepGraphs(lambda: captured)
    group, served = clients.group(), clients.served
    group.train(ModelState(served.vector + 0.1, served.buffers), clients.orders)
    together = group.train(served, clients.orders)
    for client, alone in enumerate(alone_first):
        for found, tensor in zip(together.tensors, alone.tensors, strict=True):
            torch.testing.assert_close(found[client], tensor, rtol=0, atol=1e-9)
    # Four clients with 4 samples, three with 4, two with 1: four steps each, the first as it is.
    expected = (0, 0) if settings is CHANGING else (3, 9)
    assert (captured.captures, captured.launches) == expected


@pytest.mark.parametrize(("version", "forgotten"), [("2.7.0", 2), ("2.11.0", 2), ("2.12.0", 0)])
def test_failed_capture_is_forgotten(
    monkeypatch: pytest.MonkeyPatch, version: str, forgotten: int
) -> None:
    """Where PyTorch would hold it for underway; the reason is the step's own."""
    calls: list[Any] = []

    def fails() -> None:
        raise RuntimeError(REFUSED)

    def ends(*_: object) -> None:
        raise RuntimeError("capture invalidated")

    generator = SimpleNamespace(clone_state=lambda: 3, graphsafe_set_state=calls.append)
    graph = SimpleNamespace(capture_begin=lambda *_, **__: None, capture_end=ends, replay=None)
    for name, stand_in in (
        ("CUDAGraph", lambda: graph),
        ("current_stream", lambda _: None),
        ("graph_pool_handle", lambda: (0, 1)),
        ("synchronize", lambda _: None),
        ("empty_cache", lambda: None),
        ("stream", lambda _: nullcontext()),
        ("default_generators", {1: generator}),
    ):
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.delattr(torch._C, "_cuda_endAllocateToPool", raising=False)
    where = "CurrentStream" if version == "2.7.0" else ""
    for name in (f"_cuda_endAllocate{where}ToPool", "_cuda_releasePool"):
        monkeypatch.setattr(torch._C, name, lambda *of: calls.append(of), raising=False)
    monkeypatch.setattr(torch, "__version__", version)
    capture = CudaCapture(SimpleNamespace(device=torch.device("cuda", 1)))  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match=REFUSED):
        capture(fails)
    assert calls == [(1, (0, 1))] * forgotten + [3] * bool(forgotten)

    def refuses(*_: object) -> None:
        raise RuntimeError("no capture is underway")

    calls.clear()
    monkeypatch.setattr(torch._C, f"_cuda_endAllocate{where}ToPool", refuses)
    with pytest.raises(RuntimeError, match=REFUSED):
        capture(fails)
    assert calls == [3] * bool(forgotten)  # the graph gives the pool back itself
