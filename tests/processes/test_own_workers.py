"""What is the user's on all cores: the same bytes on any number of workers; its memory."""

import signal
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fednnnn_plugin.assembly import build
from fednnnn_plugin.assembly.model_check import takes_any_order
from fednnnn_plugin.client.loss import Loss
from fednnnn_plugin.data.federated import FederatedData
from fednnnn_plugin.errors import UserError
from fednnnn_plugin.models import MODELS
from fednnnn_plugin.rounds.evaluation import Tally, batch_to_test, evaluation, tally
from fednnnn_plugin.rounds.loaders import LoaderData
from fednnnn_plugin.run_folder.records import Evaluation
from fednnnn_plugin.server.layout import State

from ..support.clients import client_data
from ..tiny import Content, Doing, Tiny, draw


class Own(nn.Module):
    """A convolution, normalised; tied weights; dropout; draws in the test as well; a count."""

    steps = 0

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)
        self.first, self.second = nn.Linear(144, 144), nn.Linear(144, 144)
        self.second.weight = self.first.weight
        self.fc = nn.Linear(144, 10)

    def forward(self, images: Tensor) -> Tensor:
        self.steps += self.training  # which no client inherits
        x = self.norm(self.conv(images)).relu().flatten(1)
        x = F.dropout(self.second(self.first(x)), 0.3, self.training)
        return self.fc(x) * (1 + draw() / 10 + self.steps / 1000)


class Augmented:
    """Loaders of one data set with a generator of its own, and a shuffle by the global one."""

    def __init__(self, images: Tensor, labels: Tensor, rng: np.random.Generator) -> None:
        self._images, self._labels, self._rng = images, labels, rng

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for picked in torch.randperm(len(self._labels)).split(7):
            yield self._images[picked] + self._rng.normal() / 10, self._labels[picked]


@pytest.fixture
def own(data: FederatedData, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Of as many workers as a run asks for, whatever cores there are."""
    monkeypatch.setattr(build, "side_by_side", lambda _device, _ranks, limit: limit)
    with torch.random.fork_rng([]):
        torch.manual_seed(3)
        model = Own()
    rng, clients = np.random.default_rng(0), range(data.num_clients)
    loaders = LoaderData(
        {k: Augmented(*client_data(data, k), rng) for k in clients},
        {k: data.client_size(k) for k in clients},
        Augmented(data.test_images, data.test_labels, rng),
        10,
    )
    return {"model": model, "data": loaders}


@pytest.mark.forks
@pytest.mark.slow
@pytest.mark.parametrize("tensors", [True, False])
def test_workers_of_any_number_give_the_same_bits(
    tiny: Tiny, content: Content, own: dict[str, Any], data: FederatedData, tensors: bool
) -> None:
    given = own | {"client_num_per_round": 6, "comm_round": 2}
    if tensors:
        given["data"] = data
    for count in (1, 3):
        assert tiny(str(count), worker_num=count, **given).workers == count
        kind = "threads" if tensors and count == 1 else "processes"
        assert f"workers: {count} ({kind})" in tiny.log(str(count))
    assert content(tiny.folder / "1") == content(tiny.folder / "3")
    found = tiny.model("1")
    assert torch.equal(found["first.weight"], found["second.weight"])
    assert not torch.equal(found["first.weight"], own["model"].first.weight)


def test_model_that_cannot_be_shared_runs_alone(tiny: Tiny, content: Content) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(64, 10))
    tiny("forked", comm_round=1, model=model)
    model.held = weakref.ref(model)
    assert tiny("alone", comm_round=1, model=model).workers == 1
    assert content(tiny.folder / "alone") == content(tiny.folder / "forked")
    assert "cannot pickle 'weakref" in tiny.log("alone")


@pytest.mark.slow
def test_stop_saves_before_the_client_has_ended(tiny: Tiny) -> None:
    """A trainer is interrupted in round 2, and waits for what is then saved."""
    saved = []

    def train(client: int, state: State, round_number: int) -> State:
        if round_number == 2 and not saved:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            until = time.monotonic() + 120  # a watchdog
            while time.monotonic() < until and not saved:
                saved.extend(tiny.folder.glob("run/checkpoint/round-000001.*"))
                time.sleep(0.01)
        return state

    trainer = SimpleNamespace(train=train, test=lambda *_: Evaluation(0.5, None))
    with pytest.raises(KeyboardInterrupt):
        tiny(checkpoint_every=10, trainer=trainer)
    assert saved
    assert "workers: 1 (threads)" in tiny.log()


def test_evaluation_without_room_ends_before_round_1(tiny: Tiny) -> None:
    def call(layer: Doing, images: Tensor) -> Tensor:
        if not layer.training and len(images) > 1:
            raise RuntimeError("out of memory")
        return images.flatten(1)

    with pytest.raises(UserError, match=r"^a test .*out of memory.*test_own_workers\.py"):
        tiny(model=nn.Sequential(Doing(call), nn.Linear(64, 10)))
    assert not (tiny.folder / "run").exists()


def test_evaluation_batch_follows_memory() -> None:
    """Autograd keeps each sample of 32 MiB, and 1 GiB is what a worker may.

    Off the CPU the room is what is given; on ``meta``, which has no memory, a sample counts 1.
    """
    assert batch_to_test(MODELS["nnnn_cifar10"](10), torch.zeros(1, 3, 32, 32), 0) == 200
    assert batch_to_test(nn.Conv2d(1, 1, 1), torch.zeros(1, 1, 4096, 2048), 0) == 32
    model, sample = nn.Linear(1, 1, device="meta"), torch.zeros(1, 1, device="meta")
    for room, batch in ((0, 1), (3, 3), (2**30, 2_000)):
        assert batch_to_test(model, sample, room) == batch


def test_tallies_are_weighed_by_their_samples() -> None:
    """Errors of 1 in three samples, of 3 in one: (3 · 1 + 9) / 4."""
    model, mse = nn.PReLU(), Loss("mse", F.mse_loss)  # on these an identity
    batches = [(torch.ones(3), torch.zeros(3)), (torch.full((1,), 3.0), torch.zeros(1))]
    assert evaluation([tally(model, batch, mse) for batch in batches]).loss == 3.0
    assert evaluation([Tally(1, 2.0, 2, 2), Tally(2, 4.0, 4, 4)]) == Evaluation(0.5, 1.0)
    assert evaluation([Tally(1, float("inf"), 2, 2)]) == Evaluation(0.5, None)
    assert evaluation([]) == Evaluation()


def test_memory_order_is_one_the_model_takes() -> None:
    images = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    for rows, takes in (
        (lambda _, x: x.reshape(len(x), -1), True),
        (lambda _, x: x.view(len(x), -1), False),
        (lambda _, x: x.as_strided((len(x), 144), (144, 1)), False),  # no error, other numbers
    ):
        model = nn.Sequential(nn.Conv2d(3, 4, 3), Doing(rows), nn.Linear(144, 10))
        assert takes_any_order(model, images) is takes
        # A loss or a metric may view outputs that are images.
        assert not takes_any_order(nn.Conv2d(3, 3, 3), images)
        assert not takes_any_order(model, images[0])


@pytest.mark.slow
def test_peak_is_the_same_for_more_clients(tiny: Tiny) -> None:
    """Of a model of 10 MB and clients of one image: what would be kept of a client is its model."""
    images, labels = torch.randn(20, 1, 8, 8), torch.arange(20) % 10
    data = FederatedData(images, labels, torch.arange(20).split(1), images[:9], labels[:9], 10)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 30_000), nn.Linear(30_000, 10))
    given = {"model": model, "data": data, "client_num_in_total": 20, "comm_round": 1}
    peaks = []
    for clients in (2, 20):
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        tiny(str(clients), client_num_per_round=clients, **given)
        status = Path("/proc/self/status").read_text()
        peaks.append(int(status.split("VmHWM:")[1].split()[0]) * 1024)
    one = sum(parameter.nbytes for parameter in model.parameters())
    assert (peaks[1] - peaks[0]) / one < 9  # of 18; the allocator scatters a few
