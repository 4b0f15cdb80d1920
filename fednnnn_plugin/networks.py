"""The paper's two networks, a small one for digits, and a ResNet for small images.

Layer names are the paper's. Each block pools before the activation: max-pooling and ReLU commute,
so the function is the paper's and ReLU handles a quarter of the elements.
"""

from importlib import import_module
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F


class NNNNMnist(nn.Module):
    """The paper's MNIST network (table 3, ``tab:cnn_MN``): 431,080 parameters.

    Input float ``[n, 1, 28, 28]``, output logits ``[n, num_classes]``. Images of other numbers of
    ``channels`` and sizes need as many ``places`` in the last feature map as `places` says.
    """

    def __init__(self, num_classes: int = 10, channels: int = 1, places: int = 4 * 4) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 20, 5)
        self.conv2 = nn.Conv2d(20, 50, 5)
        self.fc1 = nn.Linear(50 * places, 500)
        self.fc2 = nn.Linear(500, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits."""
        x = F.relu(F.max_pool2d(self.conv1(images), 2))
        x = F.relu(F.max_pool2d(self.conv2(x), 2))
        x = F.relu(self.fc1(x.flatten(1)))
        return self.fc2(x)

    @staticmethod
    def places(height: int, width: int) -> int:
        """Return the places of the last feature map; none of an image that is too small."""
        return max(((height - 4) // 2 - 4) // 2, 0) * max(((width - 4) // 2 - 4) // 2, 0)


class NNNNCifar10(nn.Module):
    """The paper's CIFAR-10 network (table 4, ``tab:cnn_C10``): 1,146,088 parameters.

    Input float ``[n, 3, 32, 32]``, output logits ``[n, num_classes]``. Convolutions are padded by
    one pixel, as the table's sizes ask for. Batch normalisation follows each of them. Other images
    as for `NNNNMnist`.
    """

    def __init__(self, num_classes: int = 10, channels: int = 3, places: int = 4 * 4) -> None:
        super().__init__()
        for block, (inputs, outputs) in enumerate([(channels, 32), (32, 64), (64, 128)], start=1):
            for layer, width in ((1, inputs), (2, outputs)):
                self.add_module(f"conv{block}{layer}", nn.Conv2d(width, outputs, 3, padding=1))
                self.add_module(f"bn{block}{layer}", nn.BatchNorm2d(outputs))
        self.fc1 = nn.Linear(128 * places, 382)
        self.fc2 = nn.Linear(382, 192)
        self.fc3 = nn.Linear(192, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits."""
        x = images
        for block in (1, 2, 3):
            x = F.relu(self._normalised(f"{block}1", x))
            x = F.relu(F.max_pool2d(self._normalised(f"{block}2", x), 2))
        x = F.relu(self.fc1(x.flatten(1)))
        x = F.relu(self.fc2(x))
        return self.fc3(x)

    def _normalised(self, layer: str, x: Tensor) -> Tensor:
        normalise: nn.Module = self.get_submodule(f"bn{layer}")
        return normalise(self.get_submodule(f"conv{layer}")(x))

    @staticmethod
    def places(height: int, width: int) -> int:
        """Return the places of the last feature map; none of an image that is too small."""
        return (height // 8) * (width // 8)


class NNNNDigits(nn.Module):
    """A small network of the MNIST one's shape for 8 × 8 digits: 6,058 parameters.

    Input float ``[n, 1, 8, 8]``, output logits ``[n, num_classes]``. Other images as for
    `NNNNMnist`.
    """

    def __init__(self, num_classes: int = 10, channels: int = 1, places: int = 2 * 2) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 8, 3, padding=1)
        self.conv2 = nn.Conv2d(8, 16, 3, padding=1)
        self.fc1 = nn.Linear(16 * places, 64)
        self.fc2 = nn.Linear(64, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits."""
        x = F.relu(F.max_pool2d(self.conv1(images), 2))
        x = F.relu(F.max_pool2d(self.conv2(x), 2))
        x = F.relu(self.fc1(x.flatten(1)))
        return self.fc2(x)

    @staticmethod
    def places(height: int, width: int) -> int:
        """Return the places of the last feature map; none of an image that is too small."""
        return (height // 4) * (width // 4)


def resnet18_gn(num_classes: int = 10, channels: int = 3) -> nn.Module:
    """Return a ResNet-18 for small images, such as 32 × 32, with group normalisation.

    Its stem is a 3 × 3 convolution of stride 1 without pooling; each normalisation is over two
    groups of channels. Input float ``[n, channels, H, W]``, output logits ``[n, num_classes]``.

    Source: Hsieh et al. 2020, The non-IID data quagmire of decentralized machine learning, and
    Reddi et al. 2021, Adaptive federated optimization, which has it for CIFAR-100.
    """
    model: Any = import_module("torchvision.models").resnet18(
        num_classes=num_classes, norm_layer=lambda width: nn.GroupNorm(2, width)
    )
    model.conv1 = nn.Conv2d(channels, 64, 3, padding=1, bias=False)
    nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")
    model.maxpool = nn.Identity()
    made: nn.Module = model
    return made
