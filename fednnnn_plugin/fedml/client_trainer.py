"""The engine's local training as the client trainer of a FedML cross-silo federation."""

import logging
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import torch
from fedml.core.alg_frame.client_trainer import ClientTrainer
from fedml.core.dp.fedml_differential_privacy import FedMLDifferentialPrivacy
from torch import Tensor, nn

from fednnnn_plugin.assembly.from_recipe import local_sgd
from fednnnn_plugin.assembly.functions import find_functions
from fednnnn_plugin.assembly.model_check import takes_any_order
from fednnnn_plugin.assembly.trial_pass import check_model
from fednnnn_plugin.client.replica import Replica
from fednnnn_plugin.errors import UserError
from fednnnn_plugin.fedml.keys import warn_of_unread_keys
from fednnnn_plugin.fedml.loaders import ClientLoader, has_data
from fednnnn_plugin.fedml.methods import in_scripts
from fednnnn_plugin.fedml.model_states import refuse_images_of_other_form, whole_state, with_noise
from fednnnn_plugin.fedml.processes import end_federation_together, log_through_fedml
from fednnnn_plugin.fedml.security import refuse_enabled, turn_off_earlier
from fednnnn_plugin.fedml.settings import AUTO, client_recipe
from fednnnn_plugin.processes.devices import usable_cores
from fednnnn_plugin.processes.numerics import numerics
from fednnnn_plugin.rounds.batches import Batches, LoaderBatches, TensorBatches
from fednnnn_plugin.rounds.evaluation import tally
from fednnnn_plugin.rounds.loaders import LoaderData, follow_the_engine
from fednnnn_plugin.seeds import isolated_generators
from fednnnn_plugin.user_code import on_threads

_log = logging.getLogger(__name__)


class FedNNNNClientTrainer(ClientTrainer):  # type: ignore[misc]
    """A FedML ``ClientTrainer`` that trains like the engine.

    By default this is SGD without momentum on cross-entropy, with ``weight_decay`` and, if
    ``prox_mu`` is given, the proximal term. Weights are float32, or float64 under ``fp64``;
    ``tf32`` and ``bf16`` affect only the arithmetic. For our data the batches are the engine's. Any
    other iterable of (inputs, labels) is used as it is, with the global generators seeded before
    and restored after. The seeds are those of round ``start_round + round_idx + 1``, so that a
    restarted federation continues them.

    It trains on ``client_threads`` threads, by default on all cores that the process may use,
    because a silo has one client. Sums then differ in their last bits between machines, and from a
    simulation; with ``client_threads: 1`` they do not.

    Args:
        model: trained in place.
        args: FedML's arguments. It needs ``epochs``, ``batch_size`` (-1: all samples) and
            ``learning_rate``; ``weight_decay`` (0), ``prox_mu`` (0, but needed by FedProx),
            ``precision`` (``fp32``), ``loss`` (``cross_entropy``), ``client_optimizer`` (``sgd``),
            ``client_optimizer_args``, ``learning_rate_decay``, ``max_grad_norm``,
            ``client_threads`` (``auto``), ``random_seed`` (0) and ``start_round`` (0) are optional.
            Under ``enable_dp``, ``max_grad_norm`` is FedML's setting, and clips no gradient.

    Raises:
        UserError: a line for each setting that is missing or out of range; hierarchical silos.
    """

    @in_scripts
    def __init__(self, model: nn.Module, args: Any) -> None:
        end_federation_together(args)
        log_through_fedml()
        refuse_enabled(
            args, {"enable_fhe": "FedML would encrypt another model than the trained one"}
        )
        if getattr(args, "role", "client") != "server":  # FedML's scripts build one in each
            warn_of_unread_keys(args)
            decays = getattr(args, "learning_rate_decay", None) not in (None, 1)
            if decays and getattr(args, "start_round", None) == AUTO:
                raise UserError(
                    "train_args.start_round",
                    "auto: a client that starts again counts its rounds from 1, and its learning "
                    "rate would begin anew",
                    "must be a number, or leave out learning_rate_decay",
                )
        recipe = client_recipe(args)
        self._sgd = local_sgd(recipe, find_functions(recipe))
        self._seed = recipe.common_args.random_seed
        self._start, threads = recipe.train_args.start_round, recipe.train_args.client_threads
        self._threads = usable_cores() if threads == "auto" else threads
        turn_off_earlier()  # the constructor starts what the arguments ask for
        super().__init__(model, args)
        self._staged: tuple[Any, torch.device, TensorBatches] | None = None
        self._without_data = False  # which was said
        self._any_order: bool | None = None  # of images in memory: asked once, of the first ones

    def get_model_params(self) -> OrderedDict[str, Tensor]:
        """Return a copy of the model, on the CPU."""
        self.model.train()  # a state may follow the mode
        return whole_state(self.model, self.model.state_dict(), torch.device("cpu"))

    def set_model_params(self, model_parameters: Mapping[str, Tensor]) -> None:
        """Set the model."""
        self.model.train()
        self.model.load_state_dict(model_parameters)

    def train(self, train_data: Any, device: Any, args: Any) -> None:
        """Train the model on a client's data."""
        if not has_data(train_data):
            if not self._without_data:
                _log.warning("this client has no data: it sends the model as it is")
            self._without_data = True
            return
        device = torch.device(device)
        round_number = self._start + args.round_idx + 1
        client = train_data.client if isinstance(train_data, ClientLoader) else self.id
        self.model.to(device, self._sgd.dtype)
        drawing = isolated_generators(self._seed, "client", round_number, client)
        batches = self._batches(train_data, client, device)
        with on_threads(self._threads), numerics(self._sgd.precision, device), drawing:
            sgd = self._sgd.in_round(round_number)
            sgd.train(Replica(self.model), batches.epochs(client, round_number))

    def on_after_local_training(self, train_data: Any, device: Any, args: Any) -> None:
        """Add FedML's local noise, where it is enabled, to the floating point entries."""
        if FedMLDifferentialPrivacy.get_instance().is_local_dp_enabled():
            self.set_model_params(with_noise(self.model, self.get_model_params(), local=True))

    def test(self, test_data: Any, device: Any, args: Any) -> dict[str, float]:
        """Count correct predictions and sum up the loss, as FedML's trainers do."""
        self.model.to(device)
        self.model.eval()
        with numerics(self._sgd.precision, torch.device(device)):
            parts = [
                tally(self.model, (x.to(device), labels.to(device)), self._sgd.loss)
                for x, labels in test_data
            ]
        return {
            "test_correct": sum(part.correct for part in parts),
            "test_loss": sum(part.loss for part in parts),
            "test_total": sum(part.samples for part in parts),
        }

    def _batches(self, train_data: Any, client: int, device: torch.device) -> Batches:
        if not isinstance(train_data, ClientLoader):
            follow_the_engine(train_data)
            data = LoaderData({client: train_data}, {}, (), 0)
            return LoaderBatches(data, self._sgd, device, any_order=self._takes_any_order)
        federated = train_data.data
        if self._staged is None or self._staged[:2] != (federated, device):
            name = getattr(self.args, "model", type(self.model).__name__)
            refuse_images_of_other_form(self.model, federated.train_images)
            for warning in check_model(self.model, name, federated, self._sgd):
                _log.warning(warning)
            free = self._takes_any_order
            batches = TensorBatches(federated, self._sgd, device, seed=self._seed, any_order=free)
            self._staged = federated, device, batches
        return self._staged[2]

    def _takes_any_order(self, images: Tensor) -> bool:
        if self._any_order is None:
            self._any_order = takes_any_order(self.model, images)
        return self._any_order
