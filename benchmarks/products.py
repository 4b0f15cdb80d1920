"""How near a round comes to the rate of one large matrix product."""

import time

import torch
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from fednnnn_plugin.data.federated import FederatedData
from fednnnn_plugin.models import create_model
from fednnnn_plugin.recipe import Recipe

DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16}


def operations(recipe: Recipe, data: FederatedData) -> float:
    """Count the floating-point operations of a round's products; a multiply-add is two."""
    model = create_model(recipe.model_args.model, 0)
    images = data.normalised(data.train_images[: recipe.train_args.batch_size])
    with FlopCounterMode(display=False) as counter:
        F.cross_entropy(model(images), data.train_labels[: len(images)]).backward()
    per_image: float = counter.get_total_flops() / len(images)
    total = sum(data.client_size(client) for client in range(data.num_clients))
    return per_image * total * recipe.train_args.epochs


def ceiling(precision: str, device: torch.device) -> float:
    """Return the floating-point operations a second of a large matrix product."""
    size = 2048 if device.type == "cpu" else 16384
    matrix = torch.randn(size, size, dtype=DTYPES[precision], device=device)

    def seconds() -> float:
        started = time.perf_counter()
        # The copied element waits for a GPU.
        (matrix @ matrix)[0, 0].item()
        return time.perf_counter() - started

    seconds()
    return 2 * size**3 / min(seconds() for _ in range(5))
