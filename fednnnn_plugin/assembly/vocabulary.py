"""Whether a model's vocabulary has the tokens of the data, before any client trains."""

import copy
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from fednnnn_plugin.data.federated import FederatedData
from fednnnn_plugin.errors import UserError
from fednnnn_plugin.seeds import isolated_generators
from fednnnn_plugin.user_code import user_code


@dataclass
class Tokens:
    """The least and the largest token of each client and of the test; and one sample, [1, ...]."""

    ranges: dict[str, tuple[int, int]] = field(default_factory=dict)
    sample: Tensor | None = None

    def add(self, whose: str, inputs: Tensor) -> None:
        """Add some inputs of a client; those that are no int64 are no tokens."""
        if inputs.dtype != torch.int64 or not inputs.numel():
            return
        seen = (int(inputs.min()), int(inputs.max()))
        low, high = self.ranges.get(whose, seen)
        self.ranges[whose] = min(low, seen[0]), max(high, seen[1])
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
    """Refuse tokens that the embedding which reads them has no row for."""
    if tokens.sample is None:
        return
    for name, rows in _embeddings(model, tokens.sample).items():
        for whose, ends in tokens.ranges.items():
            wrong = [token for token in ends if not 0 <= token < rows]
            # A model may bring them into its range itself.
            if wrong and name in _embeddings(model, tokens.sample, wrong[:1]):
                raise UserError(
                    where,
                    f"{whose}: token {wrong[0]}: {name} of the model has rows for 0 to {rows - 1}",
                )


def _embeddings(
    model: nn.Module, sample: Tensor, tokens: Sequence[int] = (0, 1)
) -> Mapping[str, int]:
    """Return the embeddings that read the model's inputs as they are, and their numbers of rows.

    Where the model gets one of the tokens everywhere, so do they.
    """
    model = copy.deepcopy(model).eval()
    like = next(model.parameters(), sample)
    read: dict[str, set[int]] = {}
    rows: dict[str, int] = {}

    def watch(name: str, embedding: nn.Embedding | nn.EmbeddingBag) -> None:
        def note(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            if inputs and torch.equal(inputs[0], given):
                read.setdefault(name, set()).add(int(given.flatten()[0]))

        rows[name] = embedding.num_embeddings
        embedding.register_forward_pre_hook(note)

    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag):
            watch(name, module)
    for token in tokens:
        given = torch.full_like(sample, token, device=like.device)
        # What else is wrong with the model is said by who tries it on real samples.
        seeded = isolated_generators(0, "model check")
        with suppress(UserError), user_code("model"), torch.no_grad(), seeded:
            model(given)
    return {name: rows[name] for name, seen in read.items() if len(seen) == len(tokens)}
