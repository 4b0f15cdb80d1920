"""What a training step reaches: models whose gradients no client would apply, and right ones."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from fednnnn_plugin.assembly.model_check import own_copy
from fednnnn_plugin.assembly.outputs_check import outputs_warnings
from fednnnn_plugin.assembly.trial_pass import check_model, own_generators, samples_of
from fednnnn_plugin.client.local_sgd import LocalSGD
from fednnnn_plugin.client.loss import LOSSES, Loss
from fednnnn_plugin.data.federated import FederatedData
from fednnnn_plugin.errors import UserError
from fednnnn_plugin.rounds.augmentation import TRANSFORM
from fednnnn_plugin.rounds.loaders import LoaderData

SGD = LocalSGD(1, 5, 0.1)
LEFT = torch.nn.Parameter(torch.ones(10))  # that nobody trains


class Net(nn.Module):
    """A linear model, and what a test adds to it in ``__init__`` and does in ``forward``."""

    def __init__(self, add: Callable[[Any], object], call: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.own, self.call = nn.Linear(64, 10), call
        add(self)

    def forward(self, images: Tensor) -> Tensor:
        return self.call(self, images.flatten(1))


def add(**made: Callable[[Any], object]) -> Callable[[Any], None]:
    def of(net: Any) -> None:
        for name, make in made.items():
            setattr(net, name, make(net))

    return of


def lazily(name: str, make: Callable[[], object]) -> Callable[[Any, Tensor], Tensor]:
    """Make a part when it is first needed."""

    def call(net: Any, x: Tensor) -> Tensor:
        if getattr(net, name, None) is None:
            setattr(net, name, make())
        part = getattr(net, name)
        return net.own(x) + (part(x) if callable(part) else part)

    return call


def unfrozen(net: Any, x: Tensor) -> Tensor:
    net.own.weight.requires_grad_(net.training)
    return net.own(x)


def replaced(net: Any, x: Tensor) -> Tensor:
    net.own.bias = nn.Parameter(net.own.bias.detach().clamp(max=1))
    return net.own(x)


def keeps_hidden(net: Any, x: Tensor) -> Tensor:
    net.hidden = net.own(x).detach()
    return net.own(x)


def hooked(net: Any) -> None:
    net.further = nn.Linear(64, 10)
    net.own.register_forward_hook(lambda _, args, out: out + net.further(args[0]))


def normed(net: Any) -> None:
    net.norm = nn.BatchNorm1d(10)
    net.then = lambda x: net.norm(x.repeat(2, 1))[
        : len(x)
    ].detach()  # trains nothing of the original, but moves it


def tied(net: Any) -> None:
    net.further = nn.Linear(64, 10)
    net.further.weight = net.own.weight


def frozen(net: Any) -> None:
    net.further = nn.Linear(64, 10).requires_grad_(requires_grad=False)


def plain(net: Any, x: Tensor) -> Tensor:
    return net.own(x)


def when_tested(net: Any, x: Tensor) -> Tensor:
    """Reaches the original in a test alone."""
    return net.own(x) if net.training else net.then(x)


def scaled(net: Any, x: Tensor) -> Tensor:
    return net.own(x) * net.scale


def starting(net: Any, x: Tensor) -> Tensor:
    """From a state that is made anew, as in a recurrent network."""
    return net.own(x) + torch.zeros(len(x), 10, requires_grad=True)


def both(net: Any, x: Tensor) -> Tensor:
    return net.own(x) + net.further(x)


SUM_LEFT = Loss("mine", lambda outputs, targets: F.cross_entropy(outputs + LEFT, targets))


def of_forms(data: FederatedData, form: str) -> FederatedData | LoaderData:
    """The data as arrays or as loaders."""
    if form == "arrays":
        return data
    parts = [
        TensorDataset(data.train_images[own], data.train_labels[own]) for own in data.client_indices
    ]
    loaders = {client: DataLoader(part, 5) for client, part in enumerate(parts)}
    sizes = {client: len(part) for client, part in enumerate(parts)}
    return LoaderData(loaders, sizes, [], 10)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (Net(add(late=lambda _: None), lazily("late", lambda: nn.Linear(64, 10))), "late.bias"),
        (
            Net(add(), lazily("place", lambda: nn.Parameter(torch.zeros(10)))),
            "place: was made",
        ),
        (Net(add(cls=lambda _: nn.Linear), lambda net, x: net.cls(64, 10)(x)), "is none of"),
        (Net(add(all=lambda _: [nn.Linear(64, 10)]), lambda net, x: net.all[0](x)), "ModuleList"),
        (
            Net(lambda net: net.own.requires_grad_(False).bias.requires_grad_(), unfrozen),
            "own.weig",
        ),
        (Net(add(), replaced), "own.bias: was made, removed or replaced"),
        (
            Net(lambda net: net.register_buffer("hidden", torch.zeros(1, 10)), keeps_hidden),
            r"hidden: shape .*, 10\): must be \(1, 10\): must stay: .*persistent=False",
        ),
        (
            Net(add(then=lambda net: lambda x: 2 * net.own(x)), lambda net, x: net.then(x)),
            "own.weight",
        ),
        (
            Net(add(then=lambda net: lambda x: 2 * net.own(x)), when_tested),
            r"own\.\w+ of the model",
        ),
        (Net(hooked, plain), r"further\.\w+ of the model that was given"),
        (Net(normed, lambda net, x: net.own(x) + net.then(net.own(x))), r"changes norm\."),
        (Net(add(), lambda net, x: net.own(x).detach() + LEFT.detach()), "no gradient"),
        (
            Net(add(scale=lambda _: torch.ones(10, requires_grad=True)), scaled),
            r"Tensor of \[10\] that is none",
        ),
    ],
)
@pytest.mark.parametrize("form", ["arrays", "loaders"])
def test_gradients_that_no_client_would_apply(
    data: FederatedData, given: nn.Module, named: str, form: str
) -> None:
    model = own_copy(given, "mine", torch.float32)
    with pytest.raises(UserError, match=f"^model_args.model: mine: .*{named}"):
        check_model(model, "mine", of_forms(data, form), SGD, given)


class Holding:
    """A loss object that holds the model."""

    def __init__(self, net: nn.Module) -> None:
        self.net = net

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs, targets) + self.net.own.weight.square().sum()


def test_loss_that_reaches_what_no_client_trains(data: FederatedData) -> None:
    given = Net(add(), plain)
    near = Loss("near", lambda o, t: F.cross_entropy(o, t) + given.own.weight.square().sum())
    model = own_copy(given, "mine", torch.float32)
    none = Loss("none", lambda o, t: F.cross_entropy(o.detach(), t))
    with pytest.raises(UserError, match="no gradient for any"):
        check_model(model, "mine", data, replace(SGD, loss=none), given)
    begun = Loss("begun", lambda o, t: torch.zeros((), requires_grad=True) + F.cross_entropy(o, t))
    assert check_model(model, "mine", data, replace(SGD, loss=begun), given) == []
    pairs = Loss("pairs", lambda o, t: o[t == t[0]][2:].sum() if len(o) > 2 else torch.zeros(()))
    assert check_model(model, "mine", data, replace(SGD, loss=pairs), given) == []
    for loss, named in (
        (near, r"own\.weight of the model that"),
        (SUM_LEFT, r"\[10\] that is none"),
        (Loss("holding", Holding(given)), "must hold nothing that trains"),
    ):
        with pytest.raises(UserError, match=f"^train_args.loss: .*{named}"):
            check_model(model, "mine", data, replace(SGD, loss=loss), given)


@pytest.mark.parametrize(
    ("given", "warned"),
    [
        (Net(add(), plain), ""),
        (Net(tied, both), ""),
        (Net(add(), starting), ""),
        (Net(frozen, both), ""),
        (Net(add(further=lambda _: nn.Linear(64, 10)), plain), "further.weight, further.bias"),
        (Net(add(), lazily("cache", lambda: torch.ones(10))), ""),
        (Net(add(then=lambda net: net.own.forward), lambda net, x: net.then(x)), ""),
        (nn.Sequential(nn.Flatten(), nn.DataParallel(nn.Linear(64, 10))), ""),
    ],
)
def test_right_models_are_taken(data: FederatedData, given: nn.Module, warned: str) -> None:
    model = own_copy(given, "mine", torch.float32)
    warnings = check_model(model, "mine", data, SGD, given)
    assert len(warnings) == bool(warned)
    assert warned in "".join(warnings)


def squared(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).square().mean()


def test_model_that_trains_in_place_may_hold_itself(data: FederatedData) -> None:
    """As a trainer of FedML's has it."""
    model = Net(add(then=lambda net: lambda x: 2 * net.own(x)), lambda net, x: net.then(x))
    assert check_model(model, "mine", data, SGD) == []


@pytest.mark.parametrize(
    ("loss", "outputs", "targets", "warned"),
    [
        (
            lambda o, t: 2 * F.cross_entropy(o, t),
            [[0.0] * 32] * 2,
            [0, 1],
            "no accuracy is recorded",
        ),
        (nn.CrossEntropyLoss(label_smoothing=0.1), [[0.0] * 32] * 2, [0, 1], ""),  # some not seen
        (nn.CrossEntropyLoss(ignore_index=9), [[[0.0] * 3] * 4], [[0, 9, 3]], "up to 9.* 4 class"),
        (nn.CrossEntropyLoss(), [[[0.0] * 3] * 10], [[0, -100, 3]], ""),
        (squared, [[0.0, 0.0]] * 2, [[0.0, 1.0], [1.0, 0.0]], r"argmax\(1\)"),
        (squared, [[0.0]] * 2, [0.0, 1.0, 2.0], "compares each output"),
        (lambda o, t: squared(o.squeeze(-1), t), [[0.0]] * 2, [0.0, 1.0], ""),
        (lambda o, t: squared(o, t.unsqueeze(-1)), [[0.0]] * 2, [0.0, 1.0], ""),
    ],
)
def test_what_a_loss_makes_of_outputs(loss: Any, outputs: Any, targets: Any, warned: str) -> None:
    own, given = Loss("mine", loss, 10), (torch.tensor(outputs), torch.tensor(targets))
    found = outputs_warnings(own, *given, 10, (), {})
    assert len(found) == bool(warned)
    assert re.search(warned, "".join(found))
    if warned.startswith("no accuracy"):
        with pytest.raises(UserError, match=r"^validation_args\.metrics: f1_macro: "):
            outputs_warnings(own, *given, 10, ["f1_macro"], {})


@pytest.mark.parametrize(
    ("metric", "warned"),
    [
        (lambda o, t: (o - t).abs().mean(), True),
        (lambda o, t: ((o > 0).float() == t).float().mean(), True),
        (lambda o, t: ((o > 0.5) == (t > 0.5)).float().mean(), True),
        (lambda o, t: -(t * o.log() + (1 - t) * (1 - o).log()).mean(), True),
        (lambda o, t: (o.flatten() - t).abs().mean(), False),
        (lambda o, t: (o - t[:, None]).abs().mean(), False),
        (lambda o, _: o.mean(), False),
        (lambda o, t: (o[:, 0] * t).mean(), False),  # raises for outputs [n]
    ],
)
def test_metric_of_each_output_with_all_targets_is_said(metric: Any, warned: bool) -> None:
    given = torch.zeros(9, 1), (torch.arange(9) % 2).float()
    found = outputs_warnings(LOSSES["bce_with_logits"], *given, 2, (), {"mine": metric})
    said = ["validation_args.metrics: mine: with outputs [n, 1] and targets [n] it compares"]
    assert [one[: len(said[0])] for one in found] == said * warned


@pytest.mark.parametrize(
    ("loss", "last", "warned"),
    [
        (Loss("cross_entropy", F.cross_entropy), nn.Softmax(1), True),
        (LOSSES["bce_with_logits"], nn.Sequential(nn.Sigmoid(), nn.Flatten()), True),
        (Loss("mine", nn.BCELoss(), 2), nn.Sigmoid(), False),
    ],
)
def test_probabilities_under_a_loss_on_logits(loss: Loss, last: nn.Module, warned: bool) -> None:
    outputs = last(torch.randn(4, 2, requires_grad=True))
    targets = torch.eye(2).repeat(2, 1) if "cross" not in loss.name else torch.arange(4) % 2
    found = "".join(outputs_warnings(loss, outputs, targets, 2, ["f1_macro"], {}))
    assert ("takes logits" in found) == warned


def test_frozen_weight_that_a_hook_has_merged_is_said(data: FederatedData) -> None:
    """A model that its user has evaluated, and that parts its weights when it is trained."""

    def merging(net: Any) -> None:
        net.base, net.merged = nn.Linear(64, 10).requires_grad_(False), False

        def follow(net: Any, _: object) -> None:
            if net.merged == net.training:
                net.base.weight.data += (1 - 2 * net.merged) * net.own.weight.data
                net.merged = not net.training

        net.register_forward_pre_hook(follow)

    net = Net(merging, lambda net, x: net.base(x) + (0 if net.merged else net.own(x)))
    assert check_model(own_copy(net, "mine", torch.float32), "mine", data, SGD) == []
    net.eval()(torch.zeros(1, 1, 8, 8))
    (said,) = check_model(own_copy(net, "mine", torch.float32), "mine", data, SGD)
    assert re.search(r"mine: base\.weight: .* in training mode before the run", said)


def test_model_of_whole_batches_is_tried_on_them(data: FederatedData) -> None:
    """It takes no batch of one or two, as an RNN that keeps the state of each place does not."""

    def call(net: Any, x: Tensor) -> Tensor:
        return net.own(x.view(5, 64)) if len(x) == 5 else net.own(x.view(-1))

    whole = replace(data, client_indices=data.client_indices[2:4])  # of 5 and 30 samples
    assert check_model(Net(add(), call), "mine", of_forms(whole, "loaders"), SGD) == []


class Rotating:
    """Draws from ``R``, as MONAI's transforms do, and changes its input so often."""

    def __init__(self, draws: Any, often: float = 1.0) -> None:
        self.R, self.often = draws, often

    def __call__(self, x: Tensor) -> Tensor:
        return x + self.R.random() if self.R.random() <= self.often else x


@pytest.mark.parametrize("often", [1, 0.5])
def test_generators_that_no_seed_reaches_are_said(data: FederatedData, often: float) -> None:
    """The transform is tried by a copy, and what it raises is left to round 1."""

    def said(data: FederatedData | LoaderData, transform: Any = None) -> list[str]:
        batch = samples_of(data)
        assert batch is not None
        return own_generators(data, batch, transform)

    own = Rotating(np.random.RandomState(0), often)
    (warning,) = said(data, own)
    assert re.match(f"{TRANSFORM}: gives others under the same seeds.* generator$", warning)
    assert own.R.random() == np.random.RandomState(0).random()
    seeded = Rotating(np.random, often)
    assert said(data, seeded) == said(data, Rotating(None)) == []
    pairs = [*zip(data.train_images[:20], data.train_labels, strict=False)]
    for transform, warned in ((own, "data_args.dataset: gives others"), (seeded, "")):
        of: Any = [(transform(x[None]), y[None]) for x, y in pairs]
        assert said(LoaderData({0: of}, {0: 20}, of, 10)) == []
        drawing: Any = Transformed(pairs, transform)
        loader = DataLoader(drawing, 5, shuffle=True)
        found = said(LoaderData({0: loader}, {0: 20}, loader, 10))
        assert [each[: len(warned)] for each in found] == [warned] * bool(warned)


@dataclass
class Transformed:
    """A ``Dataset`` whose transform runs in each pass."""

    pairs: list[tuple[Tensor, Tensor]]
    transform: Callable[[Tensor], Tensor]

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x, y = self.pairs[index]
        return self.transform(x), y
