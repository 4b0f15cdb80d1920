"""Element-wise minimum and maximum of the clients' buffers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

_SIGN = 1 << 63


class BufferBounds:
    """The range that each element of the clients' buffers spans.

    Args:
        like: the global buffers, for names, shapes, dtypes and device.
        floating: names whose minimum is kept, too; of the others only the maximum counts.
    """

    def __init__(self, like: Mapping[str, Tensor], floating: Sequence[str]) -> None:
        self._like = like
        self._floating = floating
        self.lowest: dict[str, Tensor] = {}
        self.highest: dict[str, Tensor] = {}

    def add(self, state: Mapping[str, Tensor]) -> None:
        """Widen the range by one client's buffers."""
        values = {name: state[name].detach().to(like) for name, like in self._like.items()}
        # Adding 0 makes -0 the same as 0: which of them is the smaller would depend on the order.
        floating = {name: values[name] + 0.0 for name in self._floating}
        self._widen(floating, values | floating)

    def merge(self, other: BufferBounds) -> None:
        """Widen the range by another's."""
        self._widen(other.lowest, other.highest)

    def _widen(self, lowest: Mapping[str, Tensor], highest: Mapping[str, Tensor]) -> None:
        for mine, theirs, pick in (
            (self.lowest, lowest, torch.minimum),
            (self.highest, highest, torch.maximum),
        ):
            for name, value in theirs.items():
                mine[name] = pick(mine[name], value) if name in mine else value.clone()

    def encode(self) -> Tensor:
        """Return the range as int64 keys: the maximum of two encodings is that of their union.

        Keys keep the order of the values; a minimum is the complement of its key. Without a client
        every key is the smallest.
        """
        parts = [
            _key(self.highest[name]).reshape(-1)
            if name in self.highest
            else torch.full((like.numel(),), -_SIGN)
            for name, like in self._like.items()
        ]
        parts += [
            ~_key(self.lowest[name]).reshape(-1)
            if name in self.lowest
            else torch.full((self._like[name].numel(),), -_SIGN)
            for name in self._floating
        ]
        return torch.cat(parts) if parts else torch.empty(0, dtype=torch.int64)

    def decode(self, keys: Tensor) -> None:
        """Take over the range that :meth:`encode` gave, of at least one client."""
        pieces = self._cut(keys)
        for name, like in self._like.items():
            self.highest[name] = _value(next(pieces), like)
        for name in self._floating:
            self.lowest[name] = _value(~next(pieces), self._like[name])

    def _cut(self, keys: Tensor) -> Iterator[Tensor]:
        names = [*self._like, *self._floating]
        return iter(keys.split([self._like[name].numel() for name in names]))


def _key(value: Tensor) -> Tensor:
    """Map numbers to int64 so that their order stays: the bits of a double, if it is one."""
    value = value.cpu()
    if not value.is_floating_point():
        return value.to(torch.int64)
    bits = value.to(torch.float64).view(torch.int64)
    return torch.where(bits < 0, bits ^ (_SIGN - 1), bits)


def _value(key: Tensor, like: Tensor) -> Tensor:
    if like.is_floating_point():
        bits = torch.where(key < 0, key ^ (_SIGN - 1), key)
        key = bits.view(torch.float64)
    return key.to(like).view(like.shape)
