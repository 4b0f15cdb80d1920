"""Whether a model's vocabulary has the tokens of the data, before any client trains."""

import copy
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor, nn

from fednnnn_plugin.data.federated import FederatedData
from fednnnn_plugin.errors import UserError
from fednnnn_plugin.seeds import isolated_generators
from fednnnn_plugin.user_code import user_code


@dataclass
class Tokens:
    """The least and the largest token, each with whose it is; and one sample, [1, ...]."""

    ends: list[tuple[int, str]] = field(default_factory=list)
    sample: Tensor | None = None

    def add(self, whose: str, inputs: Tensor) -> None:
        """Add some inputs of a client; those that are no int64 are no tokens."""
        if inputs.dtype != torch.int64 or not inputs.numel():
            return
        seen = [*self.ends, (int(inputs.min()), whose), (int(inputs.max()), whose)]
        self.ends = [min(seen, key=itemgetter(0)), max(seen, key=itemgetter(0))]
        self.sample = inputs[:1].clone()  # a worker's tensor holds a file descriptor


def tokens_of(data: FederatedData) -> Tokens:
    """Return the tokens of staged data."""
    tokens = Tokens()
    if data.train_images.dtype == torch.int64:
        for client, positions in enumerate(data.client_indices):
            tokens.add(f"client {client}", data.train_images[positions])
        tokens.add("test", data.test_images)
    return tokens


def check_tokens(model: nn.Module, where: str, tokens: Tokens) -> None:
    """Refuse a token that an embedding of the model gets as it is, and has no row for.

    The model gets a sample of that token alone; it may bring tokens into its range itself.
    """
    for token, whose in tokens.ends:
        assert tokens.sample is not None
        if missing := _without_row(model, torch.full_like(tokens.sample, token), token):
            raise UserError(where, f"{whose}: token {token}: {missing}")


def _without_row(model: nn.Module, inputs: Tensor, token: int) -> str:
    """Say which embedding has no row for the token that all ``inputs`` are; nothing if none."""
    missing = list[str]()

    def look(name: str, embedding: Any, given: tuple[Tensor, ...]) -> None:
        rows = embedding.num_embeddings
        looks = given and given[0].numel() and bool((given[0] == token).all())
        if looks and not 0 <= token < rows:
            missing.append(f"{name} of the model has rows for 0 to {rows - 1}")
            raise IndexError  # a GPU cannot compute any more after such a look-up

    # Other errors of the model are found by the trial on real samples.
    seeded = isolated_generators(0, "model check")
    with suppress(UserError), user_code("model"), torch.no_grad(), seeded:
        model = copy.deepcopy(model)
        model.eval()
        for name, module in model.named_modules():
            if isinstance(module, nn.Embedding | nn.EmbeddingBag):
                module.register_forward_pre_hook(partial(look, name))
        model(inputs.to(next(model.parameters(), inputs).device))
    return "".join(missing)
