"""FedSAM: sharpness-aware minimisation at the clients."""

from typing import ClassVar

import torch
from torch import Tensor

from fednnnn_plugin.client.method import ClientMethod, GradientAt, LocalStep
from fednnnn_plugin.server.rules import positive


class FedSAM(ClientMethod):
    r"""FedSAM (Qu, Li, Duan, Liu, Tang, Lu 2022, arXiv 2206.02618, algorithm 1).

    .. math::
        g = ∇ℓ\left(w + ρ \frac{∇ℓ(w; b)}{\left\lVert ∇ℓ(w; b) \right\rVert_2}; b\right), \quad
        w ← w - η (g + λ w)

    with one batch for both gradients, of which the first has no decay. Where it is 0, the second is
    taken at w. A step costs two. Buffers are those of the first.
    """

    keys: ClassVar = {"sam_rho": positive(grid=(0.01, 0.02, 0.05, 0.1, 0.2, 0.5))}
    evaluations = 2

    def __init__(self, sam_rho: float) -> None:
        self.rho = sam_rho

    def gradient(self, weights: Tensor, gradient_at: GradientAt, step: LocalStep) -> Tensor:
        """Return the gradient at the point of the steepest ascent, at a distance of ρ."""
        ascent = gradient_at(weights)
        norm = torch.linalg.vector_norm(ascent, dim=1, keepdim=True)
        scale = torch.where(norm > 0, self.rho / norm, 0.0)
        return gradient_at(weights + scale * ascent)
