"""A FedML ``ClientTrainer`` as the engine's local training."""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fednnnn_plugin.client.replica import aliases
from fednnnn_plugin.fedml.loaders import FedMLDataset, test_batches
from fednnnn_plugin.fedml.tester_results import ResultReader
from fednnnn_plugin.run_folder.records import Evaluation
from fednnnn_plugin.server.layout import State


class ClientTrainerAdapter:
    """Calls a user's trainer in FedML's order, one client at a time; sets ``args.round_idx``."""

    def __init__(
        self, trainer: Any, model: nn.Module, args: Any, device: torch.device, dataset: FedMLDataset
    ) -> None:
        self._trainer, self._args, self._device = trainer, args, device
        self._sizes, self._train_loaders = dataset[4], dataset[5]
        self._test_loaders, self._test_loader = dataset[6] or {}, test_batches(dataset)
        self._tied = aliases(model)
        self._results = ResultReader("client_trainer")

    def train(self, client: int, state: State, round_number: int) -> State:
        """Return what the trainer makes of ``state``; what is no model, the caller refuses."""
        trainer, args, device = self._trainer, self._args, self._device
        batches = self._train_loaders[client]
        args.round_idx = round_number - 1
        trainer.set_id(client)
        trainer.update_dataset(batches, self._test_loaders.get(client), self._sizes[client])
        trainer.set_model_params(self._parameters(state))
        trainer.on_before_local_training(batches, device, args)
        trainer.train(batches, device, args)
        trainer.on_after_local_training(batches, device, args)
        found: Any = trainer.get_model_params()
        if not isinstance(found, Mapping):
            return found
        return {
            name: given.detach().to(state[name].device)
            if name in state and isinstance(given, Tensor)
            else given
            for name, given in found.items()
            if name not in self._tied
        }

    def test(self, state: State, round_number: int) -> Evaluation:
        """Return what the trainer's own test finds, by FedML's counts or under its own names."""
        self._args.round_idx = round_number - 1
        self._trainer.set_model_params(self._parameters(state))
        found = self._trainer.test(self._test_loader, self._device, self._args)
        return self._results.evaluation(found if isinstance(found, Mapping) else None)

    def _parameters(self, state: State) -> OrderedDict[str, Tensor]:
        # A copy: the engine's tensors are the served model itself.
        full = OrderedDict((name, tensor.clone()) for name, tensor in state.items())
        full.update((name, full[first]) for name, first in self._tied.items())
        return full
