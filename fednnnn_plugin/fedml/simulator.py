"""What ``FedMLRunner`` runs for our methods: the engine, on FedML's data, model and trainer."""

import sys
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from fednnnn_plugin.assembly.federation import run_federation
from fednnnn_plugin.assembly.from_recipe import recipe_followers, run_folder, run_mode
from fednnnn_plugin.assembly.functions import find_functions
from fednnnn_plugin.assembly.inputs import Inputs
from fednnnn_plugin.data.federated import FederatedData
from fednnnn_plugin.fedml.keys import (
    TRAINING_KEYS,
    warn_of_near_keys,
    warn_of_unread_keys,
    warn_of_unused_keys,
)
from fednnnn_plugin.fedml.loaders import FedMLDataset, check_dataset, engine_data, staged_data
from fednnnn_plugin.fedml.methods import in_scripts, warn_of_the_proximal_term
from fednnnn_plugin.fedml.model_states import refuse_images_of_other_form
from fednnnn_plugin.fedml.processes import Mlops, quiet_fedml, simulation_ranks
from fednnnn_plugin.fedml.security import SWITCHES, refuse_enabled, turn_off_earlier
from fednnnn_plugin.fedml.settings import script_recipe
from fednnnn_plugin.fedml.tester import SimulationTester
from fednnnn_plugin.fedml.trainer_adapter import ClientTrainerAdapter
from fednnnn_plugin.fingerprint import Fingerprint, code_digests, model_digests
from fednnnn_plugin.followers.progress import progress_display
from fednnnn_plugin.models import MODELS, is_built_in
from fednnnn_plugin.processes.devices import tensors_made_on_cpu
from fednnnn_plugin.processes.endings import exit_at_signals
from fednnnn_plugin.processes.job import ending_together
from fednnnn_plugin.recipe.schema import own_keys
from fednnnn_plugin.run_folder.tensor_files import read_tensors

# FedML's create_model_trainer does tag and next-word prediction for these.
_OTHER_TASKS = ("stackoverflow_lr", "stackoverflow_nwp", "fed_shakespeare")


class Simulator:
    """A simulation of ours, with the interface of FedML's simulators.

    The run folder is ``runs/<file>-seed<seed>``, or ``args.output``, which a script may set. What
    ``fedml run`` takes as options stands in the file: ``tracking_args.resume: true`` or
    ``tracking_args.overwrite: true``. The loaders of ``dataset`` may be any iterables of (x, y)
    batches; ``client_trainer`` replaces the engine's local training; ``server_aggregator`` tests
    the evaluation model, by ``test_all`` and ``test``, and aggregates nothing; :meth:`run` leaves
    the evaluation model in ``model``, as FedML's simulators leave theirs.
    """

    @in_scripts
    @tensors_made_on_cpu()
    def __init__(
        self,
        args: Any,
        device: torch.device,
        dataset: FedMLDataset,
        model: nn.Module,
        client_trainer: Any = None,
        server_aggregator: Any = None,
    ) -> None:
        turn_off_earlier()  # a custom trainer asks FedML's
        unread = TRAINING_KEYS if client_trainer is not None else ()
        if client_trainer is None:
            client_trainer = _task_trainer(model, args)
        custom = client_trainer is not None
        check_dataset(dataset)
        if custom:
            warn_of_near_keys(args, training=False)
        else:
            warn_of_unread_keys(args)
        warn_of_unused_keys(args, simulation=True)
        said = SimpleNamespace(**vars(args) | _brought(args, dataset, model))
        self._recipe = script_recipe(said, custom_trainer=custom, unread=unread)
        refuse_enabled(args, dict.fromkeys(SWITCHES, "simulations of our methods do not have it"))
        if custom:
            warn_of_the_proximal_term(args)
        self._ranks = simulation_ranks(self._recipe.comm_args.backend)
        with ending_together(self._ranks):
            self._folder = run_folder(self._recipe, getattr(args, "output", None) or None)
            tracking = self._recipe.tracking_args
            self._mode = run_mode(resume=tracking.resume, overwrite=tracking.overwrite)
            device = torch.device(device)
            data = engine_data(dataset, self._recipe.train_args.client_num_in_total)
            if isinstance(data, FederatedData) and not custom:
                refuse_images_of_other_form(model, data.train_images)
            given = model, args, device, dataset
            trainer = ClientTrainerAdapter(client_trainer, *given) if custom else None
            tests = server_aggregator is not None
            tester = SimulationTester(server_aggregator, *given) if tests else None
            functions = find_functions(self._recipe, custom_trainer=custom)
            fingerprint = _fingerprint(model, client_trainer, server_aggregator)
            self._inputs = Inputs(model, data, device, trainer, fingerprint, functions, tester)

    @in_scripts
    def run(self) -> None:
        """Run the federation; under MPI rank 0 has its folder and its model."""
        tracking = recipe_followers(self._recipe, Mlops) if self._ranks.rank == 0 else []
        with (
            exit_at_signals(),
            ending_together(self._ranks),
            quiet_fedml(),
            progress_display(self._recipe.train_args.comm_round) as display,
        ):
            run_federation(
                self._recipe,
                lambda: self._inputs,
                self._folder,
                self._mode,
                ranks=self._ranks,
                followers=[display, *tracking],
            )
            self._ranks.agree()  # whoever goes on finds the whole folder
            if self._ranks.rank == 0:
                sys.stdout.write(f"run folder: {self._folder}\n")
                evaluation, _ = read_tensors(self._folder / "model.safetensors")
                # What is no tensor of a parameter or buffer, as an extra state, stays the caller's.
                self._inputs.model.load_state_dict(evaluation, strict=False)


def _fingerprint(model: nn.Module, trainer: object, tester: object) -> Fingerprint:
    """Return the fingerprint of what a script brought, but for its data.

    A simulation leaves its result in the model: the weights do not tell which model it is.
    """
    found: dict[str, Mapping[str, str]] = {}
    if not is_built_in(model):
        digests = model_digests(model)
        found["model"] = {part: digests[part] for part in ("layout", "code")}
    for name, own in (("trainer", trainer), ("tester", tester)):
        if own is not None:
            found[name] = code_digests(type(own))
    return found


def _brought(args: Any, dataset: FedMLDataset, model: nn.Module) -> dict[str, Any]:
    """Return what the arguments say of data and model that are not what the script brought."""
    brought: dict[str, Any] = {}
    if staged_data(dataset, getattr(args, "client_num_in_total", None)) is None:
        brought |= dict.fromkeys(set(own_keys("data_args")) - {"dataset"})
    if (ours := MODELS.get(str(getattr(args, "model", None)))) and type(model) is not ours:
        brought["model"] = "custom"
    return brought


def _task_trainer(model: nn.Module, args: Any) -> Any:
    """Return FedML's own trainer for its tasks that are not classification, else None."""
    if getattr(args, "dataset", None) not in _OTHER_TASKS:
        return None
    from fedml.ml.trainer.trainer_creator import create_model_trainer

    return create_model_trainer(model, args)
