"""A server rule of a user's, which remembers what is easily lost between two rounds, and draws.

A tensor in float64, a count, and a number that float32 does not hold.
"""

from typing import Any

import torch

from fednnnn_plugin.server.rules import decay, positive, rule


@rule(
    server_lion_lr=positive(argument="lr", grid=(0.001, 0.002)),
    server_lion_beta=decay(default=0.9, argument="beta"),
    evaluated="served",
)
class ServerLion(torch.optim.Optimizer):
    """m = β m + (1 - β) S;  w = w + η 0.9^t sign(m) / t"""

    def __init__(self, params: Any, lr: float, beta: float = 0.9) -> None:
        super().__init__(params, {"lr": lr, "beta": beta})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for w in group["params"]:
                state = self.state[w]
                m = state.setdefault("m", torch.zeros_like(w, dtype=torch.float64))
                state["step"] = state.get("step", 0) + 1
                state["rate"] = 0.9 * state.get("rate", 1.0)
                m.lerp_(-w.grad.double(), 1 - group["beta"])
                w.add_(m.sign(), alpha=group["lr"] * state["rate"] / state["step"])
                w.add_(torch.randn_like(w), alpha=1e-6)
