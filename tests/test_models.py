"""The paper's networks against its tables, typed in again here."""

from math import prod
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.models import MODELS, create_model

# Layer, input (c, w, h), output (c, w, h), kernel; None for a fully connected layer. Strides are 1.
MNIST = [  # table 3
    ("conv1", (1, 28, 28), (20, 24, 24), 5),
    ("conv2", (20, 12, 12), (50, 8, 8), 5),
    ("fc1", (50 * 4 * 4,), (500,), None),
    ("fc2", (500,), (10,), None),
]
CIFAR10 = [  # table 4
    ("conv11", (3, 32, 32), (32, 32, 32), 3),
    ("conv12", (32, 32, 32), (32, 32, 32), 3),
    ("conv21", (32, 16, 16), (64, 16, 16), 3),
    ("conv22", (64, 16, 16), (64, 16, 16), 3),
    ("conv31", (64, 8, 8), (128, 8, 8), 3),
    ("conv32", (128, 8, 8), (128, 8, 8), 3),
    ("fc1", (128 * 4 * 4,), (382,), None),
    ("fc2", (382,), (192,), None),
    ("fc3", (192,), (10,), None),
]
TABLES = {"nnnn_mnist": MNIST, "nnnn_cifar10": CIFAR10}
COUNTS = {"nnnn_mnist": 431_080, "nnnn_cifar10": 1_146_088}
SHAPES = {"nnnn_mnist": (1, 28, 28), "nnnn_digits": (1, 8, 8)}


def paper_forward(name: str, model: nn.Module, x: Tensor) -> Tensor:
    """Go through the table from top to bottom: convolution, (BN and) ReLU, then max-pooling."""
    norms = iter([m for m in model.modules() if isinstance(m, nn.BatchNorm2d)])
    for layer, inputs, outputs, kernel in TABLES[name]:
        if x.shape[1:].numel() != prod(inputs):  # pooled in between
            x = F.max_pool2d(x, kernel_size=2, stride=2)
        module = model.get_submodule(layer)
        x = module(x.reshape(len(x), *inputs))
        assert x.shape[1:] == outputs
        if kernel is not None:
            assert (module.kernel_size, module.stride) == ((kernel, kernel), (1, 1))
            x = next(norms)(x) if name == "nnnn_cifar10" else x
        x = x if layer == TABLES[name][-1][0] else F.relu(x)
    return x


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("training", [True, False])
def test_models_are_the_papers_functions(name: str, training: bool) -> None:
    """In value and in gradient."""
    ours, theirs = (create_model(name, seed=3).train(training) for _ in range(2))
    layers = [n for n, m in ours.named_modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    assert layers == [row[0] for row in TABLES[name]]
    assert sum(p.numel() for p in ours.parameters()) == COUNTS[name]
    images = torch.randn(4, *TABLES[name][0][1], generator=torch.Generator().manual_seed(1))
    outputs = ours(images), paper_forward(name, theirs, images)
    torch.testing.assert_close(*outputs, rtol=1e-6, atol=1e-6)
    for output in outputs:
        F.cross_entropy(output, torch.tensor([1, 0, 9, 4])).backward()
    gradients = ([p.grad for p in model.parameters()] for model in (ours, theirs))
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", [*MODELS, "squeezenet1_1"])
def test_model_weights_follow_the_seed_alone(name: str) -> None:
    torch.manual_seed(1)
    first = create_model(name, 5, 7)
    torch.manual_seed(2)
    state = torch.get_rng_state()
    torch.set_default_dtype(torch.float64)  # as a program of the caller's may
    try:
        again, other = create_model(name, 5, 7), create_model(name, 6, 7)
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(torch.get_rng_state(), state)
    torch.testing.assert_close(again.state_dict(), first.state_dict(), rtol=0, atol=0)
    assert not torch.equal(next(other.parameters()), next(first.parameters()))
    assert first.training
    assert all(p.requires_grad and p.dtype == torch.float32 for p in first.parameters())
    assert first(torch.zeros(2, *SHAPES.get(name, (3, 32, 32)))).shape == (2, 7)


def test_googlenet_has_no_auxiliary_classifier() -> None:
    with torch.device("meta"):
        assert create_model("googlenet", 0).aux1 is None


def own(text: str, seed: int = 0) -> nn.Module:
    """Make a model of the function in a module of the user's, in the current directory."""
    Path("own_models.py").write_text(f"from torch import nn\n{text}\n")
    return create_model("own_models:create", seed, 7, allow_code=True)


@pytest.mark.parametrize(
    ("text", "outputs"),
    [
        ("def create(width=5, *, num_classes=2): return nn.Linear(width, num_classes)", 7),
        ("def create(width=3, num_classes=2, /): return nn.Linear(width, num_classes)", 7),
        ("def create(width=3, *, classes): return nn.Linear(width, classes)", 7),
        ("def create(width=3): return nn.Linear(width, 4)", 4),
        ("def create(*widths, **more): return nn.Linear(3, 4, **more)", 4),
        ("class create(nn.Linear):\n    def __init__(self, n): super().__init__(3, n)", 7),
    ],
)
def test_model_function_takes_classes_or_nothing(own_code: Path, text: str, outputs: int) -> None:
    first, again, other = (own(text, seed) for seed in (1, 1, 2))
    assert first.out_features == outputs
    assert torch.equal(first.weight, again.weight)
    assert not torch.equal(first.weight, other.weight)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("create = nn.Linear(3, 7)", "is a model; must be a function"),
        ("def create(): return 3", "returned a int; must be a torch.nn.Module"),
        ("def create(a, b): pass", "raised TypeError: "),
    ],
)
def test_model_that_is_none_is_refused(own_code: Path, text: str, expected: str) -> None:
    with pytest.raises(UserError, match=f"^model_args.model: own_models:create: {expected}"):
        own(text)
    with pytest.raises(UserError, match=r"^model_args.model: .* did you mean resnet\d+"):
        create_model("resnet19", seed=0)
