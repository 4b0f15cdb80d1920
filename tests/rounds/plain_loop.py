"""Federated rounds in plain PyTorch, written from the papers' equations: what runs are held to."""

import copy
import math
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fednnnn_plugin.data.federated import FederatedData
from fednnnn_plugin.recipe import Recipe
from fednnnn_plugin.seeds import torch_generator
from fednnnn_plugin.user_code import load_code

from ..support.clients import client_data

LOSSES = {
    "cross_entropy": F.cross_entropy,
    "bce_with_logits": F.binary_cross_entropy_with_logits,
    "mse": lambda outputs, targets: ((outputs.squeeze(-1) - targets) ** 2).mean(),
}
OPTIMIZERS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}


def loss_of(recipe: Recipe) -> Any:
    name = recipe.train_args.loss or "cross_entropy"
    return LOSSES[name] if name in LOSSES else load_code(name, "train_args.loss")


def as_inputs(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def vector(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def follow(
    model: nn.Module, data: FederatedData, recipe: Recipe, number: int, client: int, shift: Tensor
) -> int:
    """Train one client of a round, each gradient shifted; FedProx adds ``μ/2 ‖w - w_t‖²``."""
    train, loss = recipe.train_args, loss_of(recipe)
    name = train.client_optimizer
    optimizer = (OPTIMIZERS.get(name) or getattr(torch.optim, name))(
        model.parameters(),
        lr=train.learning_rate * (train.learning_rate_decay or 1.0) ** (number - 1),
        weight_decay=train.weight_decay,
        **(train.client_optimizer_args or {}),
    )
    served, mu = copy.deepcopy(model), recipe.rule_settings.get("prox_mu", 0.0)
    shifts = copy.deepcopy(model)
    nn.utils.vector_to_parameters(shift, shifts.parameters())
    images, labels = map(as_inputs, client_data(data, client))
    generator, steps = torch_generator(0, "shuffle", number, client), 0
    size = len(labels) if train.batch_size == -1 else train.batch_size
    last = train.local_steps or math.ceil(Fraction(str(train.epochs)) * -(-len(labels) // size))
    model.train()
    while steps < last:
        batches = torch.randperm(len(labels), generator=generator).split(size)
        for batch in batches[: last - steps]:
            optimizer.zero_grad()
            value = loss(model(images[batch]), labels[batch])
            pairs = zip(model.parameters(), served.parameters(), strict=True)
            (value + mu / 2 * sum((w - w_t.detach()).square().sum() for w, w_t in pairs)).backward()
            for w, c in zip(model.parameters(), shifts.parameters(), strict=True):
                w.grad += c.detach()
            if train.max_grad_norm:
                nn.utils.clip_grad_norm_(model.parameters(), train.max_grad_norm)
            optimizer.step()
            steps += 1
    return steps


@dataclass
class Outcome:
    """The evaluation model; w, c and each c_k of SCAFFOLD; every round's norms."""

    average: nn.Module
    served: Tensor
    c: Tensor
    of_clients: dict[int, Tensor] = field(default_factory=dict)
    norms: list[dict[str, float]] = field(default_factory=list)


def plain_loop(start: nn.Module, data: FederatedData, recipe: Recipe) -> Outcome:
    """One client after another, then the rule on the averages.

    Without a β the rule adds S as it is. ``client_sampling`` is either uniform, or draws client k
    with a weight of k + a ninth of the round. SCAFFOLD (option II) shifts gradients by c - c_k.
    """
    train, rule, count = recipe.train_args, recipe.rule_settings, data.num_clients
    out = Outcome(start, vector(start), torch.zeros_like(vector(start)))
    moved = torch.zeros_like(out.served)  # d
    for number in range(1, train.comm_round + 1):
        generator, size = torch_generator(0, "cohort", number), train.client_num_per_round
        if train.client_sampling:
            cohort = torch.multinomial(torch.arange(count) + number / 9, size, generator=generator)
        else:
            cohort = torch.randperm(count, generator=generator)[:size]
        returned, changes = [], []
        served = copy.deepcopy(out.average)  # its buffers
        nn.utils.vector_to_parameters(out.served, served.parameters())
        for client in cohort.tolist():
            model, shift = copy.deepcopy(served), torch.zeros_like(out.c)
            c_k = out.of_clients.get(client, shift)
            if train.client_method == "scaffold":
                shift = out.c - c_k
            steps = follow(model, data, recipe, number, client, shift)
            change = (out.served - vector(model)) / (steps * train.learning_rate) - out.c
            out.of_clients[client] = c_k + change
            returned.append(model)
            changes.append(change)
        sizes = [data.client_size(client) for client in cohort.tolist()]
        alpha = torch.tensor(sizes if train.client_weighting == "samples" else [1] * len(sizes))
        alpha = alpha.double() / alpha.sum()
        average = copy.deepcopy(served)
        for name, tensor in average.state_dict().items():
            stack = torch.stack([model.state_dict()[name] for model in returned])
            averaged = stack.is_floating_point()
            tensor.copy_(torch.tensordot(alpha, stack, 1) if averaged else stack.amax(0))
        update = vector(average) - out.served
        n = update.norm().item()
        e = float(alpha @ torch.stack([(vector(model) - out.served).norm() for model in returned]))
        scale = rule["beta"] * e / n if "beta" in rule else 1.0
        moved = rule.get("gamma", 0.0) * moved + scale * update
        norms = {"mean_update_norm": n, "mean_client_norm": e}
        out.norms.append(norms | {"server_update_norm": moved.norm().item()})
        out.average, out.served = average, out.served + moved
        out.c = out.c + size / count * (alpha @ torch.stack(changes))
    return out
