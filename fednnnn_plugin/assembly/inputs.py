"""What a recipe's run is of: its data and model, or the objects that a program gave for them."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fednnnn_plugin.assembly.from_recipe import load_data, rank_device
from fednnnn_plugin.assembly.functions import Functions, find_functions
from fednnnn_plugin.assembly.loaders import has_loaders, load_loaders
from fednnnn_plugin.assembly.vocabulary import Tokens, check_tokens, tokens_of
from fednnnn_plugin.data.federated import FederatedData
from fednnnn_plugin.data.images import Split
from fednnnn_plugin.data.own_data import DATA, bring_data
from fednnnn_plugin.fingerprint import Fingerprint, code_digests, model_digests, tensors_digest
from fednnnn_plugin.models import MODEL, create_model, form_of, is_built_in
from fednnnn_plugin.processes.ranks import Ranks
from fednnnn_plugin.recipe import Recipe
from fednnnn_plugin.recipe.data_spec import data_spec
from fednnnn_plugin.rounds.loaders import LoaderData
from fednnnn_plugin.rounds.training import ForeignTester, ForeignTrainer
from fednnnn_plugin.user_code import find_code, is_own


class Inputs(NamedTuple):
    """What a run is of; the trainer replaces the engine's local training and test.

    The tester replaces the test alone, a trainer's too; it runs in this process. The fingerprint is
    of model, trainer and tester, of those that are the user's.
    """

    model: nn.Module
    data: FederatedData | LoaderData
    device: torch.device
    trainer: ForeignTrainer | None = None
    fingerprint: Fingerprint = MappingProxyType({})
    functions: Functions = Functions()
    tester: ForeignTester | None = None

    @property
    def are_ours(self) -> bool:
        """Tell whether model, data and training are this package's own."""
        # A part of the training that is the user's may draw from global generators.
        own_training = {"loss", "optimizer", "client_method", "transform"}
        return (
            is_built_in(self.model)
            and isinstance(self.data, FederatedData)
            and self.trainer is None
            and own_training.isdisjoint(self.functions.digests)
        )


def recipe_inputs(
    recipe: Recipe, ranks: Ranks, objects: Mapping[str, object] = MappingProxyType({})
) -> Inputs:
    """Load a recipe's data and make its model, or take the ``objects`` by ``section.key``."""
    # Data may take their time: what all ranks can refuse comes first.
    functions = find_functions(recipe, objects)
    device = rank_device(recipe, ranks)
    data, tokens = recipe_data(recipe, ranks, objects.get(DATA))
    of_images = data.train_images.shape[1:] if isinstance(data, FederatedData) else ()
    model, digests = recipe_model(
        recipe,
        data.num_classes,
        objects.get(MODEL),
        form=form_of(recipe.model_args.model, of_images),
    )
    check_tokens(model, f"data_args.dataset: {recipe.data_args.dataset}", tokens)
    return Inputs(model, data, device, fingerprint=digests, functions=functions)


def recipe_data(
    recipe: Recipe, ranks: Ranks, given: object
) -> tuple[FederatedData | LoaderData, Tokens]:
    """Load a recipe's data, or what a program gave for them; with the range of their tokens."""
    brought = None
    if is_own(recipe.data_args.dataset):
        with ranks.one_before_others():
            brought = bring_data(data_spec(recipe), given)
        if has_loaders(brought):
            ranks.agree()  # as ranks do that get arrays, which are then refused
            return load_loaders(brought, recipe)
    data = load_data(recipe, ranks, brought=brought)
    return data, tokens_of(data)


def recipe_model(
    recipe: Recipe, num_classes: int, given: object, *, form: Mapping[str, int]
) -> tuple[nn.Module, Fingerprint]:
    """Make a recipe's model, for images of this form, or what a program gave for it."""
    name = recipe.model_args.model
    made = create_model(
        name,
        recipe.common_args.random_seed,
        num_classes,
        form=form,
        given=given,
        arguments=recipe.model_args.arguments,
        allow_code=recipe.allow_code,
    )
    if not is_own(name):
        return made, {}
    if made is given:
        return made, {"model": model_digests(made)}
    maker = find_code(MODEL, name, given, allow_code=recipe.allow_code)
    return made, {"model": model_digests(made, "drawn_weights", [maker])}  # by the seed


def whole_fingerprint(recipe: Recipe, inputs: Inputs) -> Fingerprint:
    """Return the fingerprint of a run: of what is the user's, and of a data set's split."""
    found = {**inputs.data.fingerprint, **inputs.fingerprint, **inputs.functions.digests}
    if isinstance(inputs.data, FederatedData):
        found |= _data_digests(inputs.data)
    rule = recipe.rule
    if not rule.is_ours:  # its code, and what its decorator says
        keys = [(name, vars(key)) for name, key in rule.keys.items()]
        declared = (keys, rule.wants, rule.evaluated, rule.client_method)
        found["rule"] = code_digests(rule.optimizer, *declared)
    return found


def _data_digests(data: FederatedData) -> Fingerprint:
    """Return the digests of a data set's tensors and split, but for those that a user gave."""
    found = {}
    if "data" not in data.fingerprint:
        tensors = {name: value for name, value in vars(data).items() if isinstance(value, Tensor)}
        found["tensors"] = tensors_digest(tensors.items())
    for name in ("client_indices", "client_test_indices"):
        positions: tuple[Tensor, ...] = getattr(data, name)
        if positions and "split" not in data.fingerprint:
            found[name] = Split(positions).digest()
    return {"data_set": found} if found else {}
