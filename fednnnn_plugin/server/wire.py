"""An accumulator's partial sums as contiguous buffers, for processes that add them up.

A process sends a :class:`Header` of fixed size (from it all learn which bins are in use), one
int64 buffer of sums and one of buffer bounds. Their sizes depend on the model alone, not on how
many clients the process trained.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fednnnn_plugin.server.accumulator import UpdateAccumulator
from fednnnn_plugin.server.exact import ExactSum, FixedPointSum
from fednnnn_plugin.server.tally import ClientTally

_EXACT_BYTES = 544  # 2^15 products of two doubles, in units of 2^-2148
_COUNTS = struct.Struct("<5q")
_BINS = struct.Struct(f"<{2 * FixedPointSum.KEPT_BINS}q")
_NO_BIN = -(1 << 62)


@dataclass(frozen=True)
class Header:
    """A partial sum's scalars, and the bins of its vectors."""

    tally: ClientTally
    update_terms: int
    buffer_terms: int
    update_bins: tuple[int, ...]
    buffer_bins: tuple[int, ...]

    @classmethod
    def of(cls, part: UpdateAccumulator) -> Header:
        """Describe a partial sum."""
        return cls(
            part.tally,
            part.updates.terms,
            part.buffers.terms,
            tuple(part.updates.bins),
            tuple(part.buffers.bins),
        )

    def encode(self, capacity: int) -> bytes:
        """Return the header in a size that ``capacity``, at least the clients, gives."""
        tally = self.tally
        bins = [
            bin_
            for kept in (self.update_bins, self.buffer_bins)
            for bin_ in (*kept, *[_NO_BIN] * (FixedPointSum.KEPT_BINS - len(kept)))
        ]
        sums = (tally.weight, tally.norm, tally.square, *tally.layer_norms.values())
        padding = [0.0] * (capacity - len(tally.norms))
        return b"".join(
            (
                _COUNTS.pack(
                    len(tally.norms),
                    tally.non_finite,
                    tally.failed,
                    self.update_terms,
                    self.buffer_terms,
                ),
                _BINS.pack(*bins),
                *(total.units.to_bytes(_EXACT_BYTES, "little") for total in sums),
                struct.pack(f"<{capacity}d", *tally.norms, *padding),
            )
        )

    @classmethod
    def decode(cls, content: bytes, modules: Sequence[str]) -> Header:
        """Read what :meth:`encode` gave, for a model with these modules."""
        clients, non_finite, failed, update_terms, buffer_terms = _COUNTS.unpack_from(content)
        bins = _BINS.unpack_from(content, _COUNTS.size)
        offset = _COUNTS.size + _BINS.size
        sums = []
        for _ in range(3 + len(modules)):
            sums.append(ExactSum(int.from_bytes(content[offset : offset + _EXACT_BYTES], "little")))
            offset += _EXACT_BYTES
        weight, norm, square, *layers = sums
        norms = list(struct.unpack_from(f"<{clients}d", content, offset))
        tally = ClientTally(
            dict(zip(modules, layers, strict=True)),
            weight,
            norm,
            square,
            norms,
            non_finite,
            failed,
        )
        kept = FixedPointSum.KEPT_BINS
        return cls(
            tally,
            update_terms,
            buffer_terms,
            tuple(bin_ for bin_ in bins[:kept] if bin_ != _NO_BIN),
            tuple(bin_ for bin_ in bins[kept:] if bin_ != _NO_BIN),
        )


def merged(headers: Sequence[Header]) -> Header:
    """Add up the headers of all processes."""
    tally = ClientTally.of(headers[0].tally.layer_norms)
    for header in headers:
        tally.merge(header.tally)
    return Header(
        tally,
        sum(header.update_terms for header in headers),
        sum(header.buffer_terms for header in headers),
        FixedPointSum.kept({bin_ for header in headers for bin_ in header.update_bins}),
        FixedPointSum.kept({bin_ for header in headers for bin_ in header.buffer_bins}),
    )


def pack_sums(part: UpdateAccumulator, total: Header) -> Tensor:
    """Return a part's share of the bins in use: int64, contiguous, on the CPU."""
    shares = [part.updates.integers(bin_) for bin_ in total.update_bins]
    shares += [part.buffers.integers(bin_) for bin_ in total.buffer_bins]
    return torch.cat(shares).cpu() if shares else torch.empty(0, dtype=torch.int64)


def unpack(part: UpdateAccumulator, total: Header, sums: Tensor, bounds: Tensor) -> None:
    """Make ``part`` the whole: ``sums`` and ``bounds`` are those of all processes."""
    vectors = (
        (part.updates, total.update_bins, total.update_terms),
        (part.buffers, total.buffer_bins, total.buffer_terms),
    )
    cuts = iter(sums.split([vector.size for vector, bins, _ in vectors for _ in bins]))
    for vector, bins, terms in vectors:
        vector.replace({bin_: next(cuts) for bin_ in bins}, terms)
    if total.tally.norms:
        part.bounds.decode(bounds)
    part.tally = total.tally
