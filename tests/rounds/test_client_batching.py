"""Runs whose clients train together: the records, the bits, and what is refused."""

import copy
import gc
import random
import weakref
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from fednnnn_plugin.assembly import build
from fednnnn_plugin.assembly.executors import why_alone
from fednnnn_plugin.assembly.functions import Functions
from fednnnn_plugin.assembly.inputs import Inputs
from fednnnn_plugin.client.group_probe import why_not_together
from fednnnn_plugin.client.group_sgd import GroupSGD
from fednnnn_plugin.client.local_sgd import LocalSGD
from fednnnn_plugin.client.loss import LOSSES, Loss
from fednnnn_plugin.client.method import ClientMethod
from fednnnn_plugin.client.replica import Replica
from fednnnn_plugin.data.federated import FederatedData
from fednnnn_plugin.errors import RunError, UserError
from fednnnn_plugin.models import create_model
from fednnnn_plugin.rounds import executor, group_adder
from fednnnn_plugin.rounds.batches import TensorBatches
from fednnnn_plugin.rounds.group_adder import GroupAdder
from fednnnn_plugin.rounds.groups import MEMORY, WIDEST, client_needs, room_on, widest_group
from fednnnn_plugin.rounds.loaders import LoaderData
from fednnnn_plugin.rounds.training import TrainTogether, train_alone
from fednnnn_plugin.server.average import ClientSum

from ..tiny import Content, Doing, Tiny

CPU = torch.device("cpu")
SGD = LocalSGD(1, 5, 0.1)
MODEL = create_model("nnnn_digits", 0)
PLAIN = ClientMethod()
NEEDS, _ = client_needs(MODEL, SGD, torch.empty(5, 1, 8, 8, device="meta"), PLAIN)
# Sizes 7, 12, 5, 30, 9, 16: with batches of 8 that is 1, 2, 1, 4, 2, 2 steps.
ALL = {"client_num_per_round": 6, "batch_size": 8, "epochs": 1}


def test_group_width_follows_the_gpus_memory(data: FederatedData) -> None:
    """The data and ten models are left out; ``MEMORY`` of the rest holds clients, at least one."""
    staged = sum(len(y) * (64 * 4 + 8) for y in (data.train_labels, data.test_labels))
    own = staged + 64 * sum(p.numel() for p in MODEL.parameters())
    assert [room_on(MODEL, data, memory) for memory in (0, 1, own + 9)] == [0, 1, 9]
    for free, together in ((0, 1), (1, 1), (4 * NEEDS, 3), (2**60, WIDEST)):
        for asked, width in (("auto", together), ("off", 1), (7, 7)):
            assert widest_group(MODEL, data, SGD, PLAIN, asked, free, str) == width


def test_layers_of_a_group_have_fewer_than_2_31_elements(data: FederatedData) -> None:
    """Of five samples a client, repeated to 5 · 2^n elements."""
    width = partial(widest_group, data=data, sgd=SGD, method=PLAIN, setting="auto", why_alone=str)
    for power, wide in ((17, WIDEST), (22, 102)):
        many = Doing(lambda _, x, n=1 << power: x[:, :1].expand(-1, n).square())  # type: ignore[misc]
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 1), many)
        assert width(model, room=2**60) == min(WIDEST, (2**31 - 1) // (5 << power)) == wide


def test_single_number_of_a_method_takes_the_memory_of_one() -> None:
    """Of what a client keeps there are three, of what it returns two, in float32."""
    batch, both = torch.empty(5, 1, 8, 8, device="meta"), {"keeps": ("k",), "returns": ("r",)}
    vectors, numbers = (
        client_needs(MODEL, SGD, batch, type("Own", (ClientMethod,), both | {"scalars": names})())[
            0
        ]
        for names in ((), ("k", "r"))
    )
    assert vectors - numbers == 5 * 4 * (6058 - 1)


def test_groups_are_kept_on_another_gpu(
    tiny: Tiny, content: Content, monkeypatch: pytest.MonkeyPatch
) -> None:
    def on_gpu(name: str, clients: int, rounds: int, **mode: Any) -> int:
        room = int((clients + 0.5) * NEEDS / MEMORY)
        with monkeypatch.context() as patched:
            patched.setattr(build, "room_on", lambda *_: room)
            summary = tiny(name, comm_round=rounds, client_num_per_round=6, **mode)
        return int(summary.client_batching)

    assert on_gpu("whole", 3, 3) == on_gpu("parts", 3, 2) == 3
    assert on_gpu("other", 2, 1) == 2
    assert on_gpu("parts", 2, 3, mode="resume") == 3
    assert content(tiny.folder / "whole") == content(tiny.folder / "parts")


def test_groups_are_halved_when_memory_ends(
    tiny: Tiny, content: Content, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the first group of six there is memory for three; steps of two and one were tried."""
    groups, memory_for = list[int](), GroupSGD._memory_for

    def short_of_memory(self: GroupSGD, clients: int, *given: Any) -> Any:
        groups.append(clients)
        if clients > 3 and len(groups) > 3:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory.")
        return memory_for(self, clients, *given)

    settings = ALL | {"client_batching": 6}
    with monkeypatch.context() as patched:
        patched.setattr(GroupSGD, "_memory_for", short_of_memory)
        assert tiny("whole", comm_round=3, **settings).client_batching == 3
        assert max(groups[4:]) == 3
        groups.clear()
        tiny("parts", comm_round=2, **settings)
    assert tiny.log("whole").count("WARNING") == 1
    # Of as much memory as before, a resumed run has the bits of the other, not wider groups.
    tiny("parts", mode="resume", comm_round=3, **settings)
    assert content(tiny.folder / "whole") == content(tiny.folder / "parts")
    (tiny.folder / "parts" / "summary.json").unlink()  # which has the width
    assert tiny("parts", mode="resume", comm_round=4, **settings).client_batching == 6
    assert "summary.json: missing or damaged: now 6 clients" in tiny.log("parts")


def test_memory_of_a_wide_group_is_given_back(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it ends beside the training: as updates are measured, and in a test."""
    widths, tests, held = list[int](), list[int](), list[Any]()
    measured_once = list[Any]()
    measure, memory_for, counts = ClientSum.measure, GroupSGD._memory_for, executor.tally

    def noted(self: GroupSGD, clients: int, samples: int, start: Any) -> Any:
        assert all(each() is None for each in measured_once)  # what failed is let go
        memory = memory_for(self, clients, samples, start)
        widths.append(len(memory.positions))
        held.append(self)
        return memory

    def measured(self: ClientSum, changed: Any, returned: Any) -> Any:
        if len(changed.vector) > 2:
            measured_once.append(weakref.ref(changed.vector))
            raise torch.cuda.OutOfMemoryError("out of memory")
        return measure(self, changed, returned)

    def counted(*given: Any, **more: Any) -> Any:
        tests.append(1)
        # The first is the trial before round 1; what the training keeps is all that the test lacks.
        if len(tests) > 1 and held[-1]._memory is not None:
            raise torch.cuda.OutOfMemoryError("out of memory")
        return counts(*given, **more)

    monkeypatch.setattr(GroupSGD, "_memory_for", noted)
    monkeypatch.setattr(ClientSum, "measure", measured)
    monkeypatch.setattr(executor, "tally", counted)
    monkeypatch.setattr(group_adder, "is_asynchronous", lambda _: True)
    assert tiny(comm_round=1, **ALL | {"client_batching": 6}).client_batching == 1
    assert 6 in widths
    assert held[-1]._memory is None
    assert widths[-1] == 1
    assert len(tiny.records()) == 1
    assert "out of memory)" in tiny.log()


IN_FP64 = {"precision": "fp64"}


@pytest.mark.slow
def test_users_model_trains_together_as_alone(tiny: Tiny) -> None:
    """On a custom loss, with dropout by each client's generator."""
    layers = [
        *(nn.Conv2d(1, 4, 3, bias=False), nn.GroupNorm(2, 4), nn.ReLU(inplace=True)),
        *(nn.Conv2d(4, 4, 3, groups=2), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(2)),
        *(nn.Flatten(), nn.Dropout(0.4), nn.Linear(16, 10)),
    ]
    smooth = partial(functional.cross_entropy, label_smoothing=0.1)
    model, functions = nn.Sequential(*layers), Functions(loss=Loss("smooth", smooth))
    for run, batching, width in (("alone", "off", 1), ("together", 3, 3)):
        given = IN_FP64 | {"model": copy.deepcopy(model), "client_batching": batching}
        found = tiny(run, functions=functions, comm_round=2, epochs=2, **given)
        assert found.client_batching == width
    torch.testing.assert_close(tiny.model("together"), tiny.model("alone"), rtol=1e-9, atol=1e-9)


@pytest.mark.slow
def test_batch_normalisation_of_single_elements_trains_together() -> None:
    """Of 32 × 32 pixels the last maps are 1 × 1: few samples have next to no variance."""
    images = torch.randn(20, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    model, labels = create_model("resnet18", 0), torch.arange(20) % 10
    assert why_not_together(model, SGD, images, labels) == ""
    # Fewer samples than it takes are repeated.
    flat = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 10))
    assert why_not_together(flat, SGD, images[:5], labels[:5]) == ""


@pytest.mark.slow
def test_group_leaves_nothing_in_a_users_model(tiny: Tiny) -> None:
    """Such as a count of its steps, which each client begins."""
    warm = Doing(warmed_up)
    warm.steps = 0
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10), warm)
    for run, batching in (("alone", "off"), ("together", 3)):
        tiny(run, model=model, client_batching=batching, comm_round=2, **IN_FP64)
    torch.testing.assert_close(tiny.model("together"), tiny.model("alone"), rtol=1e-9, atol=1e-9)


def warmed_up(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    layer.steps += layer.training
    return x * (0.5 if layer.steps == 1 else 1.0)


@pytest.mark.parametrize(
    ("ahead", "expected"), [(False, "s1 t1 s2 t2 s3 t3"), (True, "s1 t1 s2 t2 s3 s3 t3")]
)
def test_next_rounds_batches_are_staged_while_a_gpu_computes(
    data: FederatedData, monkeypatch: pytest.MonkeyPatch, ahead: bool, expected: str
) -> None:
    """Of a group that trains in round after round, and another in the third; the same bits."""
    batches, replica, calls = TensorBatches(data, SGD, CPU, seed=0), Replica(MODEL), list[str]()
    groups = GroupSGD(SGD, MODEL, batches.images, batches.labels)
    orders, train = batches.orders, groups.train
    monkeypatch.setattr(batches, "orders", lambda *of: calls.append(f"s{of[1]}") or orders(*of))
    monkeypatch.setattr(groups, "train", lambda *of: calls.append(f"t{of[3]}") or train(*of))
    together = TrainTogether(groups, batches, None, ahead=ahead)
    for number, group in ((1, (3,)), (2, (3,)), (3, (5,))):
        found = together(replica, number, group, None, lambda: None).vector.clone()
        alone = train(replica.state, [orders(group[0], number)]).vector
        assert torch.equal(found, alone)
    assert " ".join(calls) == expected


class Reads(TorchFunctionMode):
    """Notes what would make the host wait for a GPU."""

    names = "tolist", "item", "cpu", "numpy", "__bool__", "__int__", "__float__", "__index__"

    def __init__(self, calls: list[str]) -> None:
        super().__init__()
        self._calls = calls

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in self.names:
            self._calls.append("wait")
        return func(*args, **(kwargs or {}))

    @classmethod
    def noted_in(cls, calls: list[str], method: Any) -> Any:
        def noting(*given: Any) -> None:
            with cls(calls):
                method(*given)

        return noting


@pytest.mark.parametrize("on_gpu", [False, True])
def test_group_is_added_while_a_gpu_trains_the_next(
    tiny: Tiny, content: Content, monkeypatch: pytest.MonkeyPatch, on_gpu: bool
) -> None:
    """Three groups of two: the host waits once for each, and the bits are the same."""
    calls, train = list[str](), GroupSGD.train
    settings = ALL | {"client_batching": 2, "comm_round": 1}
    tiny("expected", **settings)

    def noted(*given: Any, **more: Any) -> Any:
        calls.append("train")
        return train(*given, **more)

    monkeypatch.setattr(GroupSGD, "train", noted)
    monkeypatch.setattr(group_adder, "is_asynchronous", lambda _: on_gpu)
    for method in (GroupAdder.add, GroupAdder.finish):
        monkeypatch.setattr(GroupAdder, method.__name__, Reads.noted_in(calls, method))
    tiny("found", **settings)
    first, second = ("wait", "train") if not on_gpu else ("train", "wait")
    assert calls[-6:] == ["train", first, second, first, second, "wait"]
    assert content(tiny.folder / "expected") == content(tiny.folder / "found")


class Annealed(nn.Module):
    """A loss that counts its steps, of which the later ones count less."""

    steps = 0

    def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
        self.steps += 1
        return functional.cross_entropy(outputs, labels) / self.steps


def flooding(outputs: Tensor, labels: Tensor) -> Tensor:
    """No mean over samples (Ishida et al. 2020)."""
    return (functional.cross_entropy(outputs, labels) - 2.2).abs() + 2.2


OF_CLASSES = torch.tensor([1.0] * 7 + [50.0] * 3)


@pytest.mark.parametrize(
    ("loss", "precision"),
    [
        (Annealed(), "fp64"),
        (flooding, "fp64"),
        (nn.CrossEntropyLoss(reduction="sum"), "fp64"),
        (nn.CrossEntropyLoss(OF_CLASSES), "fp32"),  # which it holds in float32 alone
    ],
)
def test_any_loss_trains_together_as_alone(tiny: Tiny, loss: Any, precision: str) -> None:
    """Each client has its own, of its own samples alone: clients' sizes and steps differ."""
    functions = Functions(loss=Loss("mine", loss))
    settings = ALL | {"epochs": 2, "learning_rate": 0.01, "precision": precision}
    for run, batching in (("alone", "off"), ("together", 6)):
        found = tiny(run, functions=functions, client_batching=batching, **settings)
    assert found.client_batching == 6
    near = {"fp64": 1e-9, "fp32": 1e-5}[precision]
    torch.testing.assert_close(tiny.model("together"), tiny.model("alone"), rtol=near, atol=near)


def test_what_cannot_train_together_trains_alone(
    data: FederatedData, caplog: pytest.LogCaptureFixture
) -> None:
    """With one line that says why; where a width was asked for, it is refused."""
    product = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    mixing = nn.Sequential(product, Doing(lambda _, x: x.softmax(1)))
    drawing = nn.Sequential(product, Doing(lambda _, x: x * random.random()))
    embedding = nn.Sequential(product, Doing(lambda layer, x: x + layer.own))
    embedding[1].register_parameter("own", nn.Parameter(torch.ones(10)))
    rarely = nn.Sequential(product, Doing(lambda _, x: x * float(torch.rand(()) < 2)))
    ours, adam = Inputs(MODEL, data, CPU), replace(SGD, optimizer=torch.optim.Adam)
    cases = [
        *((ours._replace(model=model), SGD) for model in (mixing, drawing, embedding, rarely)),
        (ours._replace(data=LoaderData({0: []}, {0: 1}, [], 10)), SGD),
        (ours._replace(trainer=SimpleNamespace()), SGD),
        (ours._replace(data=replace(data, train_labels=data.train_labels - 100)), SGD),
        (ours, adam),
    ]
    for inputs, sgd in cases:
        width = partial(widest_group, inputs.model, inputs.data, sgd, PLAIN)
        alone = partial(why_alone, inputs, sgd)
        caplog.clear()
        assert width("auto", 2**40, alone) == width(1, 0, alone) == 1
        assert len(caplog.records) == 1
        with pytest.raises(UserError, match=r"^train_args\.client_batching: 2: must be auto or "):
            width(2, 0, alone)
    caplog.clear()
    looking = nn.Sequential(Doing(lambda _, x: x + bool(x.max() > 99)), product)
    viewing = nn.Sequential(Doing(lambda _, x: x.view(-1).view_as(x)), product)
    widths = [widest_group(m, data, SGD, PLAIN, "auto", 2**40, str) for m in (looking, viewing)]
    assert widths == [1, WIDEST]
    assert "one after another: their memory is not known: " in caplog.text


@pytest.mark.parametrize("loss", [LOSSES["mse"], Loss("mine", nn.MSELoss())])
def test_outputs_of_one_dimension_train_together_as_alone(
    tiny: Tiny, data: FederatedData, loss: Loss
) -> None:
    """Also of a client that is the only one in a step."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 1), Doing(lambda _, x: x.squeeze(1)))
    numbers = {"train_labels": data.train_labels / 9, "test_labels": data.test_labels / 9}
    given = IN_FP64 | {"data": replace(data, **numbers), "comm_round": 2}
    functions = Functions(loss=loss)
    for run, batching in (("alone", "off"), ("together", 3)):
        tiny(
            run, model=copy.deepcopy(model), functions=functions, client_batching=batching, **given
        )
    torch.testing.assert_close(tiny.model("together"), tiny.model("alone"), rtol=1e-9, atol=1e-9)


def test_interrupted_run_keeps_no_memory_of_its_training(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though its traceback does live on, as in a notebook."""
    held, train = [], TrainTogether.__call__

    def interrupted(self: TrainTogether, replica: Replica, number: int, *more: Any) -> Any:
        held.append(self._groups)
        if number == 2:
            raise KeyboardInterrupt
        return train(self, replica, number, *more)

    monkeypatch.setattr(TrainTogether, "__call__", interrupted)
    with pytest.raises(KeyboardInterrupt) as ended:
        tiny(client_batching=3, comm_round=2)
    assert ended.value.__traceback__ is not None
    assert {groups._memory for groups in held} == {None}


def test_clients_train_together_whose_learning_rate_has_a_warm_up(tiny: Tiny) -> None:
    """Where they do at the same one: a round of the trial is none of the schedule's."""
    warm = {"name": "constant", "warmup_rounds": 1}
    summary = tiny(client_batching=3, comm_round=2, learning_rate_schedule=warm)
    assert summary.client_batching == 3


def test_failing_client_leaves_its_group_as_it_is(tiny: Tiny, data: FederatedData) -> None:
    """A label of client 4's does not exist; 0 and 2 were to train with it, and train alone."""
    labels = data.train_labels.clone()
    labels[data.client_indices[4].max()] = 99
    broken = ALL | {"client_batching": 3, "comm_round": 1}
    broken["data"] = replace(data, train_labels=labels)
    tiny(max_client_failures=1, **broken)
    [record] = tiny.records()
    assert (record["clients"], record["rejected"]) == (5, 1)
    assert tiny.log().count("WARNING fednnnn_plugin.rounds.executor: round 1: a group of 3") == 1
    with pytest.raises(RunError, match=r"client 4 .*max_client_failures allows 0"):
        tiny("other", **broken)


def test_no_activation_of_a_failed_try_is_alive_at_the_next(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by the collector of circles, which may come too late: it is off."""
    kept, alive, cross_entropy = list[Any](), list[bool](), functional.cross_entropy

    def short_of_memory(logits: Tensor, *given: Any, **more: Any) -> Tensor:
        if (more["reduction"], logits.dtype) == ("none", torch.float32):  # not of a test or a probe
            alive.append(any(each() is not None for each in kept))
        if len(kept) < 2 <= len(alive):  # a step of one was tried
            activation = logits * 2
            kept.append(weakref.ref(activation))
            raise RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED")
        return cross_entropy(logits, *given, **more)

    monkeypatch.setattr(functional, "cross_entropy", short_of_memory)
    gc.collect()
    gc.disable()
    try:
        summary = tiny(comm_round=1, **ALL | {"client_batching": 6})
    finally:
        gc.enable()
    assert (summary.client_batching, len(kept), any(alive)) == (1, 2, False)


@pytest.mark.parametrize("work", [{"local_steps": 3, "epochs": None}, {"epochs": 1.5}])
def test_groups_train_for_parts_of_epochs_as_alone(tiny: Tiny, work: dict[str, Any]) -> None:
    for run, batching in (("alone", "off"), ("together", 4)):
        tiny(run, client_batching=batching, **ALL | work | IN_FP64)
    torch.testing.assert_close(tiny.model("together"), tiny.model("alone"), rtol=1e-9, atol=1e-9)


def test_model_that_gets_another_parameter_in_training_is_refused(data: FederatedData) -> None:
    replica = Replica(copy.deepcopy(MODEL))

    def grow() -> None:
        replica.model.add_module("more", nn.Linear(1, 1))

    with pytest.raises(UserError, match=r"^model_args\.model: more\.bias: "):
        train_alone(SGD, TensorBatches(data, SGD, CPU, seed=0), replica, 1, (3,), None, grow)
