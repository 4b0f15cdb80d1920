"""The paper's networks against its tables, built again here; a user's network."""

from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torchvision.models import SqueezeNet, squeezenet1_1

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.models import create_model, form_of, is_built_in


def block(inputs: int, outputs: int) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for width in (inputs, outputs):
        convolution = nn.Conv2d(width, outputs, kernel_size=3, padding=1)
        layers += [convolution, nn.BatchNorm2d(outputs), nn.ReLU()]
    return [*layers, nn.MaxPool2d(2)]


def dense(*widths: int) -> list[nn.Module]:
    return [layer for pair in pairwise(widths) for layer in (nn.ReLU(), nn.Linear(*pair))]


SHAPES = {"nnnn_mnist": (1, 28, 28), "nnnn_cifar10": (3, 32, 32), "nnnn_digits": (1, 8, 8)}
LAYERS = {
    "nnnn_mnist": "conv1 conv2 fc1 fc2",
    "nnnn_cifar10": "conv11 conv12 conv21 conv22 conv31 conv32 fc1 fc2 fc3",
}


def paper_model(name: str) -> nn.Sequential:
    if name == "nnnn_mnist":  # table 3
        first = [nn.Conv2d(1, 20, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(20, 50, 5), nn.ReLU()]
        return nn.Sequential(*first, nn.MaxPool2d(2), nn.Flatten(), *dense(800, 500, 10))
    blocks = [*block(3, 32), *block(32, 64), *block(64, 128)]  # table 4
    return nn.Sequential(*blocks, nn.Flatten(), *dense(2048, 382, 192, 10))


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("training", [True, False])
def test_models_are_the_papers_functions(name: str, training: bool) -> None:
    """In value and in gradient."""
    ours, theirs = create_model(name, seed=3).train(training), paper_model(name).train(training)
    layers = [n for n, m in ours.named_modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    assert layers == LAYERS[name].split()
    assert [p.shape for p in ours.parameters()] == [p.shape for p in theirs.parameters()]
    vector_to_parameters(parameters_to_vector(ours.parameters()), theirs.parameters())
    images = torch.randn(4, *SHAPES[name], generator=torch.Generator().manual_seed(1))
    outputs = ours(images), theirs(images)
    torch.testing.assert_close(*outputs, rtol=1e-6, atol=1e-6)
    for output in outputs:
        F.cross_entropy(output, torch.tensor([1, 0, 9, 4])).backward()
    gradients = ([p.grad for p in model.parameters()] for model in (ours, theirs))
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["nnnn_digits", "nnnn_cifar10", "resnet18_gn", "squeezenet1_1"])
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


def test_changed_network_is_not_built_in() -> None:
    """It may draw, and then trains with seeded generators, as a user's model."""
    whole, replaced, hooked, shadowed, frozen = (create_model("nnnn_mnist", 0) for _ in range(5))
    replaced.fc2 = nn.Sequential(nn.Dropout(), replaced.fc2)
    hooked.fc1.register_forward_hook(lambda *_: None)
    shadowed.fc1.forward = F.dropout
    frozen.fc1.weight.requires_grad_(requires_grad=False)
    found = [is_built_in(model) for model in (whole, frozen, replaced, hooked, shadowed)]
    assert found == [True, True, False, False, False]


def test_models_of_torchvision_by_name() -> None:
    with torch.device("meta"):
        assert create_model("googlenet", 0).aux1 is None  # else it would return a tuple
    with pytest.raises(UserError, match=r"^model_args.model: .* did you mean resnet\d+"):
        create_model("resnet19", seed=0)


def trained(*, weights: str = "DEFAULT", **more: int) -> nn.Module:
    return squeezenet1_1(**{"num_classes": 10} | more)


trained.__module__ = "torchvision.models.some"


def test_function_of_torchvision_takes_the_number_of_classes() -> None:
    """It has it among its ``**kwargs``; what is given stays, and a class names it."""
    for given, classes in (
        (squeezenet1_1, 7),
        (partial(squeezenet1_1, weights=None), 7),
        (partial(squeezenet1_1, num_classes=20), 20),
        (partial(SqueezeNet, "1_1"), 7),
        (partial(SqueezeNet, num_classes=20), 20),
        (trained, 10),
        (SqueezeNet, 7),
    ):
        with torch.device("meta"):
            model = create_model("<object>:given", 0, 7, given=given)
        assert model.classifier[1].out_channels == classes


@pytest.mark.parametrize(
    ("text", "outputs"),
    [
        ("def create(width=5, *, num_classes=2): return nn.Linear(width, num_classes)", 7),
        ("def create(width=3, num_classes=2, /): return nn.Linear(width, num_classes)", 7),
        ("def create(width=3): return nn.Linear(width, 4)", 4),
        ("def create(*widths, **more): return nn.Linear(3, 4, **more)", 4),
        ("class create(nn.Linear):\n    def __init__(self, n): super().__init__(3, n)", 7),
    ],
)
def test_model_function_takes_classes_or_nothing(own_code: Path, text: str, outputs: int) -> None:
    Path("own_models.py").write_text(f"from torch import nn\n{text}\n")
    weights = [
        create_model("own_models:create", seed, 7, allow_code=True).weight for seed in (1, 1, 2)
    ]
    assert len(weights[0]) == outputs
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


@pytest.mark.parametrize(
    ("name", "shape", "places"),
    [
        ("nnnn_mnist", (1, 16, 20), 1 * 2),
        ("nnnn_cifar10", (1, 28, 28), 3 * 3),
        ("nnnn_digits", (2, 11, 8), 2 * 2),
        ("resnet18_gn", (1, 28, 28), 0),
    ],
)
def test_networks_take_other_images(name: str, shape: tuple[int, ...], places: int) -> None:
    form = form_of(name, shape)
    assert form == {"channels": shape[0]} | ({"places": places} if places else {})
    model = create_model(name, 0, 7, form=form)
    assert model(torch.zeros(2, *shape)).shape == (2, 7)
    if places:
        with pytest.raises(UserError, match=f"^model_args.model: {name}: "):
            form_of(name, (1, 3, 3))


def test_resnet_of_small_images_keeps_their_size() -> None:
    """ResNet-18's 11,689,512 parameters, with a 3 x 3 stem and 10 classes; no batch statistics."""
    model = create_model("resnet18_gn", 0)
    stem, head = 3 * 64 * (49 - 9), 513 * (1000 - 10)
    assert sum(p.numel() for p in model.parameters()) == 11_689_512 - stem - head
    assert not [*model.buffers()]
    assert model.layer1(model.relu(model.conv1(torch.zeros(1, 3, 32, 32)))).shape[2:] == (32, 32)
