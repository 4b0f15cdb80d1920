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
    model: nn.Module,
    data: FederatedData,
    recipe: Recipe,
    number: int,
    client: int,
    shift: Tensor,
    shrink: float = 1.0,
) -> int:
    """Train one client of a round, each gradient times ``shrink`` and shifted.

    FedProx and FedDyn add ``μ/2 ‖w - w_t‖²``; FedSAM takes the gradient at ``w + ρ g / ‖g‖``.
    """
    train, loss = recipe.train_args, loss_of(recipe)
    name = train.client_optimizer
    optimizer = (OPTIMIZERS.get(name) or getattr(torch.optim, name))(
        model.parameters(),
        lr=train.learning_rate * (train.learning_rate_decay or 1.0) ** (number - 1),
        weight_decay=train.weight_decay,
        **(train.client_optimizer_args or {}),
    )
    served, settings = copy.deepcopy(model), recipe.rule_settings
    mu = settings.get("prox_mu", settings.get("feddyn_alpha", 0.0))
    rho = settings.get("sam_rho", 0.0)
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
            here = vector(model)
            if rho:
                loss(model(images[batch]), labels[batch]).backward()
                ascent = torch.cat([w.grad.flatten() for w in model.parameters()])
                nn.utils.vector_to_parameters(
                    here + rho * ascent / ascent.norm(), model.parameters()
                )
                optimizer.zero_grad()
                seen = copy.deepcopy([*model.buffers()])
            value = loss(model(images[batch]), labels[batch])
            pairs = zip(model.parameters(), served.parameters(), strict=True)
            (value + mu / 2 * sum((w - w_t.detach()).square().sum() for w, w_t in pairs)).backward()
            nn.utils.vector_to_parameters(here, model.parameters())
            for buffer, first in zip(model.buffers(), seen if rho else (), strict=False):
                buffer.copy_(first)
            for w, c in zip(model.parameters(), shifts.parameters(), strict=True):
                w.grad = shrink * w.grad + c.detach()
            if train.max_grad_norm:
                nn.utils.clip_grad_norm_(model.parameters(), train.max_grad_norm)
            optimizer.step()
            steps += 1
    return steps


@dataclass
class Outcome:
    """The evaluation model; w, c (FedCM's m) and each c_k (FedDyn's g_k); every round's norms."""

    average: nn.Module
    served: Tensor
    c: Tensor
    of_clients: dict[int, Tensor] = field(default_factory=dict)
    norms: list[dict[str, float]] = field(default_factory=list)
    h: Tensor = field(default_factory=lambda: torch.zeros(()))  # FedDyn's


def normalise(models: list[nn.Module], served: Tensor, alpha: Tensor, steps: list[int]) -> None:
    """Let each model be as far away as if it had made the mean number of steps."""
    mean = float(alpha @ torch.tensor(steps).double())
    for model, own in zip(models, steps, strict=True):
        away = served + (vector(model) - served) * mean / own
        nn.utils.vector_to_parameters(away, model.parameters())


def weights_of(data: FederatedData, recipe: Recipe, cohort: list[int]) -> Tensor:
    sizes = [data.client_size(client) for client in cohort]
    samples = recipe.train_args.client_weighting == "samples"
    alpha = torch.tensor(sizes if samples else [1] * len(sizes)).double()
    return alpha / alpha.sum()


def plain_loop(start: nn.Module, data: FederatedData, recipe: Recipe) -> Outcome:
    """One client after another, then the rule on the averages.

    Without a β the rule adds S as it is. ``client_sampling`` is either uniform, or draws client k
    with a weight of k + a ninth of the round. SCAFFOLD (option II) shifts gradients by c - c_k,
    FedDyn by -g_k, FedCM by β m. FedNova's updates count as if all had made the mean of steps.
    """
    train, rule, count = recipe.train_args, recipe.rule_settings, data.num_clients
    method = train.client_method or recipe.rule.client_method
    beta, alpha_dyn = rule.get("fedcm_beta", 0.0), rule.get("feddyn_alpha", 0.0)
    out = Outcome(start, vector(start), torch.zeros_like(vector(start)))
    moved = torch.zeros_like(out.served)  # d
    for number in range(1, train.comm_round + 1):
        rate = train.learning_rate * (train.learning_rate_decay or 1.0) ** (number - 1)
        generator, size = torch_generator(0, "cohort", number), train.client_num_per_round
        if train.client_sampling:
            cohort = torch.multinomial(torch.arange(count) + number / 9, size, generator=generator)
        else:
            cohort = torch.randperm(count, generator=generator)[:size]
        returned, changes, taken = [], [], []
        served = copy.deepcopy(out.average)  # its buffers
        nn.utils.vector_to_parameters(out.served, served.parameters())
        for client in cohort.tolist():
            model, shift = copy.deepcopy(served), torch.zeros_like(out.c)
            c_k = out.of_clients.get(client, shift)
            shifts = {"scaffold": out.c - c_k, "feddyn": -c_k, "fedcm": beta * out.c}
            shift = shifts.get(method or "", shift)
            steps = follow(model, data, recipe, number, client, shift, 1 - beta)
            change = (out.served - vector(model)) / (steps * rate) - out.c
            if method == "feddyn":
                change = alpha_dyn * (out.served - vector(model))
            out.of_clients[client] = c_k + change
            taken.append(steps)
            returned.append(model)
            changes.append(change)
        alpha = weights_of(data, recipe, cohort.tolist())
        if method == "fednova":
            normalise(returned, out.served, alpha, taken)
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
        if recipe.rule.name == "FedDyn":
            out.h = out.h - alpha_dyn * size / count * update
            moved = update - out.h / alpha_dyn
        norms = {"mean_update_norm": n, "mean_client_norm": e}
        out.norms.append(norms | {"server_update_norm": moved.norm().item()})
        out.average, out.served = average, out.served + moved
        if recipe.rule.evaluated == "served":
            nn.utils.vector_to_parameters(out.served, average.parameters())
        mean = alpha @ torch.stack(changes)
        out.c = out.c + (mean if method == "fedcm" else size / count * mean)
    return out
