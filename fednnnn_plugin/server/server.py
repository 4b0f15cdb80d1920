"""The server of one federation: two models, one rule."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from fednnnn_plugin.errors import RunError, UserError, printable
from fednnnn_plugin.seeds import isolated_generators
from fednnnn_plugin.server.average import ClientSum
from fednnnn_plugin.server.layout import Layout, ModelState, State
from fednnnn_plugin.server.norms import part_norms
from fednnnn_plugin.server.rules import Rule
from fednnnn_plugin.server.update import Update
from fednnnn_plugin.user_code import marks_of

# Attributes that PyTorch's own optimizers change in a step.
_TORCHS = ("_need_device_dtype_check_for_fused", "_warned_capturable_if_run_uncaptured")

#: What a rule remembers, by the names of its optimizer's ``state[p]``.
Memory = Mapping[str, Tensor | int | float]


@dataclass(frozen=True)
class ServerState:
    """All that a server has between two rounds; nothing in it is changed in place.

    ``served`` starts the next round, ``evaluation`` is tested and reported; ``memory`` is the
    rule's own: tensors, ``[d]`` where they go with the parameters, and numbers.
    """

    served: ModelState
    evaluation: ModelState
    memory: Memory


@dataclass(frozen=True)
class ServerMove:
    """How a round moved the served model: ``‖w_{t+1} - w_t‖₂``, of the whole and of each module.

    ``degenerate``: the rule left the model where it was, as N was near 0.
    """

    server_update_norm: float
    layers: dict[str, float]
    degenerate: bool

    @classmethod
    def of(cls, difference: Tensor, layout: Layout, *, degenerate: bool) -> "ServerMove":
        """Return the norms of ``w_{t+1} - w_t``, a vector ``[d]``."""
        norms = part_norms(difference, layout.modules).tolist()
        whole = math.sqrt(math.fsum(norm * norm for norm in norms))
        return cls(whole, dict(zip(layout.modules, norms, strict=True)), degenerate)


class Server:
    """Moves the *served* model by the rule, and with it the *evaluation* model.

    Buffers are the update's in both. The server keeps nothing itself: :meth:`start` gives a state,
    :meth:`close_round` takes one and returns the next.
    """

    def __init__(
        self, rule: Rule, settings: Mapping[str, float], layout: Layout, population: int = 0
    ) -> None:
        if "population" in rule.wants and not population:
            raise UserError(
                "federated_optimizer",
                f"{rule.name}: wants the number of all clients, which a simulation knows",
                "must be another rule here",
            )
        self.rule = rule
        self.layout = layout
        self._population = population  # K
        self._settings = settings
        rule.make([Parameter(torch.zeros(1))], settings)  # raises now, not in round 1

    def start(self, state: State) -> ServerState:
        """Return the state before round 1, of ``w_0`` by names; it is copied."""
        model = self.layout.gather(state)
        return ServerState(model, model, {})

    def try_rule(
        self, start: ServerState, returns: Mapping[str, int] = MappingProxyType({})
    ) -> list[str]:
        """Apply a synthetic update of two clients by a custom rule; raise what it raises.

        Returns a warning where the step changes what the next round does not have. ``returns`` are
        the lengths, by names, of what clients return beside their models.
        """
        if self.rule.is_ours:
            return []
        model, total = start.served, ClientSum(self.layout, start.served, returns=returns)
        nothing = {name: model.vector.new_zeros(1, size) for name, size in returns.items()}
        with isolated_generators(0, "rule check"):
            for _ in range(2):
                changed = ModelState(torch.randn_like(model.vector) / 100, model.buffers)
                total.add_group(changed.as_group(), [1.0], returned=nothing)
            update = total.finish()
            optimizer, parameter = self._optimizer(start, update)
            before = marks_of(_forgotten(optimizer, parameter))
            with torch.no_grad():
                self._move(start, update, optimizer, parameter)
            after = marks_of(_forgotten(optimizer, parameter))
        had = [name for name in after if name in before or name.startswith("self.state")]
        lost = [name for name in had if before.get(name) != after[name]]
        return [
            f"federated_optimizer: {self.rule.name}: step() changes {printable(name)}, which the "
            "next round does not have: keep what it needs in self.state[p], and draw from the "
            "global generators"
            for name in lost
        ]

    def _optimizer(self, state: ServerState, update: Update) -> tuple[Optimizer, Parameter]:
        """Return a round's optimizer, with what the rule remembers, of the served model."""
        parameter = Parameter(state.served.vector.clone())
        parameter.grad = -update.vector
        optimizer = self.rule.make([parameter], self._settings)
        if state.memory:
            optimizer.state[parameter] = self._kept(state.memory)
        return optimizer, parameter

    def _move(
        self, state: ServerState, update: Update, optimizer: Optimizer, parameter: Parameter
    ) -> tuple[ServerState, ServerMove]:
        """Return where a round's update leads, and by how far; raise what the rule does."""
        before = state.served.vector
        average = before + update.vector
        self.rule.step(optimizer, replace(update, population=self._population))
        if parameter.shape != before.shape:
            raise UserError(
                "federated_optimizer",
                f"{self.rule.name}: gave p the shape {list(parameter.shape)}",
                f"must stay {list(before.shape)}",
            )
        served = self.layout.rounded(parameter.detach())
        match self.rule.evaluated:
            case "average":
                evaluation = self.layout.rounded(average)
            case "served":
                evaluation = served
            case "midpoint":
                evaluation = self.layout.rounded(before / 2 + served / 2)
        degenerate = bool(getattr(optimizer, "degenerate", False))
        move = ServerMove.of(served - before, self.layout, degenerate=degenerate)
        after = ServerState(
            ModelState(served, update.buffers),
            ModelState(evaluation, update.buffers),
            self._kept(optimizer.state.get(parameter, {})),
        )
        return after, move

    @torch.no_grad()
    def close_round(
        self, number: int, state: ServerState, total: ClientSum, seed: int
    ) -> tuple[Update, ServerState, ServerMove]:
        """Average a round's clients, and return where that leads; the rule may draw, by ``seed``.

        Raises:
            UserError: no client was accepted.
            RunError: the served or the evaluation model overflowed.
        """
        update = total.finish()
        with isolated_generators(seed, "rule", number):
            after, move = self._move(state, update, *self._optimizer(state, update))
        remedy = "smaller steps may help: learning_rate, max_grad_norm or the rule's own"
        if not math.isfinite(move.server_update_norm):
            raise RunError(
                f"round {number}: the served model is no longer finite: the server moved it by "
                f"{move.server_update_norm}; {remedy}"
            )
        if not after.evaluation.vector.isfinite().all():
            raise RunError(f"round {number}: the evaluation model is no longer finite; {remedy}")
        return update, after, move

    def _kept(self, memory: Memory) -> Memory:
        """Return what a rule remembers, in memory of its own, if a checkpoint can hold it."""
        for key, value in memory.items():
            if isinstance(value, Tensor):
                fits = value.layout is torch.strided and not (
                    value.is_complex() or value.is_quantized
                )
            else:
                fits = isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**63)
            if not (fits and str(key).isidentifier()):
                raise UserError(
                    "federated_optimizer",
                    f"{self.rule.name}: state[p][{key!r}]: {type(value).__name__}",
                    "must be a dense tensor of real numbers, or a number of 64 bits, under a "
                    "plain name",
                )
        return {k: v.clone() if isinstance(v, Tensor) else v for k, v in memory.items()}

    def state_dict(self, state: ServerState) -> dict[str, Tensor]:
        """Return the served model by names, and what the rule remembers."""
        return self.layout.state_dict(state.served) | self.memory_dict(state)

    def memory_dict(self, state: ServerState) -> dict[str, Tensor]:
        """Return what the rule remembers: ``[d]`` by parameters, as ``.momentum.fc1.weight``."""
        named: dict[str, Tensor] = {}
        for key, value in state.memory.items():
            if not isinstance(value, Tensor):
                dtype = torch.float64 if isinstance(value, float) else None
                named[f"..number.{key}"] = torch.tensor(value, dtype=dtype)
            elif value.shape == (self.layout.size,):
                named |= {f".{key}.{name}": x for name, x in self.layout.views(value).items()}
            else:
                named[f".{key}"] = value
        return named

    def restore(self, state: State, device: torch.device) -> ServerState | None:
        """Return what :meth:`state_dict` was given; None of another model."""
        model: dict[str, Tensor] = {}
        memory: dict[str, Tensor | int | float] = {}
        by_parameter: dict[str, dict[str, Tensor]] = {}
        for name, tensor in state.items():
            # A name in a model may begin with a dot, too: JAX's ".layers[0].bias".
            match [name] if name in self.layout.forms else name.split(".", 2):
                case ["", "", number]:
                    memory[number.removeprefix("number.")] = tensor.item()
                case ["", key, parameter]:
                    by_parameter.setdefault(key, {})[parameter] = tensor.to(device)
                case ["", key]:  # torch's optimizers count their steps on the CPU
                    memory[key] = tensor if key == "step" else tensor.to(device)
                case _:
                    model[name] = tensor.to(device)
        shapes = {entry.name: entry.shape for entry in self.layout.entries}
        for key, parts in by_parameter.items():
            if {name: part.shape for name, part in parts.items()} != shapes:
                return None
            memory[key] = self.layout.flatten(parts, next(iter(parts.values())).dtype)
        if {name: (t.shape, t.dtype) for name, t in model.items()} != self.layout.forms:
            return None
        served = self.layout.gather(model)
        return ServerState(served, served, memory)


def _forgotten(optimizer: Optimizer, parameter: Parameter) -> dict[str, object]:
    """Return what an optimizer has beside ``state[p]``, by how its code names it."""
    group: Mapping[str, object] = next(iter(getattr(optimizer, "param_groups", ())), {})
    others = ("state", "param_groups", "degenerate", *_TORCHS)
    own = {f"self.{name}": value for name, value in vars(optimizer).items() if name not in others}
    own |= {f"group[{name!r}]": value for name, value in group.items() if name != "params"}
    return own | {
        f"self.state[{_named(key)}]": value
        for key, value in optimizer.state.items()
        if key is not parameter
    }


def _named(key: object) -> str:
    return repr(key) if isinstance(key, str | int) else type(key).__name__
