"""A server whose rounds come from a platform; its state and records are kept where asked for."""

import logging
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path

import torch
from torch import Tensor, nn

from fednnnn_plugin.client.replica import aliases
from fednnnn_plugin.errors import UserError, shown
from fednnnn_plugin.quantities import kept_clients
from fednnnn_plugin.run_folder.server_records import ServerRecords
from fednnnn_plugin.run_folder.server_state import (
    EVALUATION,
    Standing,
    check_continued,
    read_state,
    restored,
    standing,
    write_state,
)
from fednnnn_plugin.server.accumulator import UpdateAccumulator
from fednnnn_plugin.server.admission import check_start
from fednnnn_plugin.server.average import ClientSum
from fednnnn_plugin.server.layout import ModelState, State, trained_by_default
from fednnnn_plugin.server.rules import Rule
from fednnnn_plugin.server.server import Server, ServerMove
from fednnnn_plugin.server.update import Update

_log = logging.getLogger(__name__)
_SEED = "..seed"  # in a state, where no other name is so


class KeptServer:
    """A server from its first model on, or from the state of the rounds that are ``done``.

    Models go in and out by name, tied tensors under each of their names.

    Args:
        rule: of the server.
        settings: the values of its keys.
        model: ``w_0`` by names.
        trainable: names of what is trained, all names of a tied tensor; a module, whose trained
            parameters they are; or None, for all that is floating point but the statistics of batch
            normalisation.
        weighting: of the clients, for the record.
        max_client_norm: longer updates are clipped to it; None clips none.
        state_path: a file for the state, or None.
        metrics_path: a folder for the records, or None.

    Raises:
        UserError: a model that cannot be averaged; a state or records that do not fit; what a trial
            step of a custom rule raises.
    """

    def __init__(
        self,
        rule: Rule,
        settings: Mapping[str, float],
        model: State,
        trainable: nn.Module | Iterable[str] | None,
        weighting: str,
        max_client_norm: float | None,
        state_path: Path | None = None,
        metrics_path: str | Path | None = None,
    ) -> None:
        self._names, self._tied = list(model), dict[str, str]()
        model = _with_counts(model, trainable)
        if isinstance(trainable, nn.Module):
            self._tied = aliases(trainable)
            model = self._once(model)
            names = [n for n, tensor in trainable.named_parameters() if tensor.requires_grad]
        else:
            names = trained_by_default(model) if trainable is None else list(trainable)
        layout = UpdateAccumulator(model, names, max_client_norm).layout  # checks all of them
        if not layout.entries:  # all would be averaged, and the rule move nothing
            raise UserError("trainable", "nothing", "must be at least one floating point array")
        self._server, self._state_path = Server(rule, settings, layout), state_path
        self._longest = max_client_norm
        self._seed, self.done = secrets.randbits(62), 0  # the seed is of what the rule draws
        train = {"federated_optimizer": rule.name, **settings, "max_client_norm": max_client_norm}
        self._settings = {"train_args": train | {"client_weighting": weighting}}
        begun = state_path is not None and state_path.exists()
        if state_path is not None and begun:
            tensors, before = read_state(state_path, "state_path", rule.name)
            self.done = before["round"]
        if self.done:  # a state of no round only says that a first record is its own
            check_continued(before, self._standing(), f"state_path: {state_path}")
            self._seed = int(tensors.pop(_SEED, self._seed))
            self._state = restored(self._server, tensors, f"state_path: {state_path}")
        else:
            self._state = self._server.start(model)
            check_start(model, [entry.name for entry in layout.entries], "initial model")
            for name in layout.buffers:
                if model[name].is_floating_point() and model[name].isnan().any():
                    raise UserError("initial model", f"{name}: has NaN", "must have none")
            if not isinstance(trainable, nn.Module):
                _check_tied(model, names, layout.buffers)
        for warning in self._server.try_rule(self._state):
            _log.warning(warning)
        self.records = ServerRecords(
            metrics_path, self.done, "state_path", self._settings, begun=begun
        )

    @property
    def served(self) -> dict[str, Tensor]:
        """The model that clients get, by all names."""
        return self._named(self._state.served)

    @property
    def evaluation(self) -> dict[str, Tensor]:
        """The model that is tested, by all names."""
        return self._named(self._state.evaluation)

    def begin_sum(self) -> ClientSum:
        """Return the sum to which the next round's clients are added."""
        return ClientSum(self._server.layout, self._state.served, self._longest)

    def add(self, total: ClientSum, state: State, weight: float, client: str) -> bool:
        """Add a client's model by all names, as ``UpdateAccumulator.add`` does."""
        name = f"round {self.done + 1}: {client}"
        return total.add(self._once(state), weight, name, client)

    @torch.no_grad()
    def close_round(self, total: ClientSum) -> tuple[Update, ServerMove]:
        """Average the clients and move both models, or leave them where no client was accepted.

        Returns what the clients added up to, and where it led.

        Raises:
            UserError: what the rule raises.
            RunError: the served or the evaluation model overflowed.
        """
        number, before, server = self.done + 1, self._state, self._server
        if number == 1:
            self._write()  # by which a record of a first round is known to be of this federation
        if total.clients:
            update, self._state, move = server.close_round(number, before, total, self._seed)
        else:
            still = self.begin_sum()
            nothing = torch.zeros_like(before.served.vector)
            still.add_group(ModelState(nothing, before.served.buffers).as_group(), [1.0])
            update = replace(
                still.finish(),
                clients=0,
                largest_share=0.0,
                rejected=total.rejected,
                by_client=kept_clients(total.seen.others),
            )
            move = ServerMove.of(update.vector, server.layout, degenerate=True)
        self.records.aggregated(number, update, move, server.rule.evaluated)
        self.done = number
        self._write()  # after the records: a round that only they have is run again
        return update, move

    def _write(self) -> None:
        if self._state_path is not None:
            server, state = self._server, self._state
            evaluation = server.layout.state_dict(state.evaluation).items()
            tensors = server.state_dict(state) | {EVALUATION + n: x for n, x in evaluation}
            tensors[_SEED] = torch.tensor(self._seed)
            write_state(self._state_path, tensors, self._standing())

    def _standing(self) -> Standing:
        return standing(self._server, self._settings, self.done)

    def _once(self, state: State) -> dict[str, Tensor]:
        return {name: tensor for name, tensor in state.items() if name not in self._tied}

    def _named(self, model: ModelState) -> dict[str, Tensor]:
        state = self._server.layout.state_dict(model)
        return {name: state[self._tied.get(name, name)] for name in self._names}


def _check_tied(model: State, trained: Iterable[str], buffers: Iterable[str]) -> None:
    """Refuse a buffer with the values of a trained tensor: most likely a tied one's other name.

    Tensors of one value throughout, such as zeros, may be alike by chance.
    """
    for first, name in product(trained, buffers):
        one, other = model[first], model[name]
        alike = (one.shape, one.dtype) == (other.shape, other.dtype) and one.equal(other)
        if alike and (one != one.flatten()[:1]).any():
            given = f"{shown(name)} has the values of {shown(first)}"
            raise UserError(
                "trainable", given, "if they are tied, name both; if not, pass the model"
            )


def _with_counts(model: State, trainable: object) -> dict[str, Tensor]:
    """Return a model with integers where the module has them, or a count by its name.

    Flower's FedAvg returns those of batch normalisation, and all others, as float64.
    """
    dtypes = {name: torch.int64 for name in model if name.endswith("num_batches_tracked")}
    if isinstance(trainable, nn.Module):
        dtypes |= {name: tensor.dtype for name, tensor in trainable.state_dict().items()}
    whole = {n for n, dtype in dtypes.items() if not (dtype.is_floating_point or dtype.is_complex)}
    return {
        name: tensor.round().to(dtypes[name])
        if name in whole and tensor.is_floating_point()
        else tensor
        for name, tensor in model.items()
    }
