"""The strategies against this package's simulation: the same clients, batches and seeds."""

from functools import partial

import pytest
import torch
from flwr.app import ArrayRecord
from safetensors.torch import load_file
from torch.testing import assert_close

import fednnnn_plugin as fp
from fednnnn_plugin.assembly.from_recipe import local_sgd
from fednnnn_plugin.assembly.functions import Functions
from fednnnn_plugin.client.replica import layout_of
from fednnnn_plugin.data.federated import load_federated
from fednnnn_plugin.flower import strategy
from fednnnn_plugin.models import create_model
from fednnnn_plugin.recipe import load_recipe
from fednnnn_plugin.recipe.data_spec import data_spec
from fednnnn_plugin.rounds.batches import TensorBatches
from fednnnn_plugin.rounds.executor import Executor
from fednnnn_plugin.rounds.sampling import draw_cohort
from fednnnn_plugin.rounds.training import train_alone

from .grid import ClientsHere, State, Train

ROUNDS, CLIENTS = 3, 4
SETTINGS = {"comm_round": ROUNDS, "client_num_per_round": CLIENTS, "epochs": 1, "using_gpu": False}


@pytest.mark.slow
@pytest.mark.every_python
@pytest.mark.parametrize(
    ("method", "options"),
    [("fednnnn", {}), ("fedadam", {"client_weighting": "samples"})],
)
def test_rounds_have_the_simulations_bits(method, options, tmp_path) -> None:
    folder = tmp_path / "run"
    weighting = options.get("client_weighting", "uniform")
    overrides = SETTINGS | {"client_weighting": weighting}
    fp.run(f"digits_noniid_b_{method}", overrides=overrides, output=folder)
    recipe = load_recipe(folder / "recipe.yaml")
    data = load_federated(data_spec(recipe))
    seed, total = recipe.common_args.random_seed, recipe.train_args.client_num_in_total
    model = create_model(recipe.model_args.model, seed, data.num_classes)
    w_0 = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    sgd, layout = local_sgd(recipe, Functions()), layout_of(model)
    batches = TensorBatches(data, sgd, torch.device("cpu"), seed=seed, any_order=True)
    executor = Executor(model, partial(train_alone, sgd, batches), batches)
    cohorts = {n: draw_cohort(seed, n, total, CLIENTS) for n in range(1, ROUNDS + 1)}

    def train(place: int, number: int, state: State) -> State:
        trained: list[torch.Tensor] = []
        client = cohorts[number][place]
        executor.train(
            layout.gather(state),
            number,
            [(client,)],
            lambda _, found: trained.append(found.vector[0].clone()),
        )
        return {name: x.clone() for name, x in layout.views(trained[0]).items()}

    clients: dict[int, Train] = {place: partial(train, place) for place in range(CLIENTS)}
    grid = ClientsHere(clients, lambda n, place: float(data.client_size(cohorts[n][place])))
    options = {**recipe.rule_settings, **options, "state_path": tmp_path / "state"}
    result = strategy(recipe.rule.name, trainable=model, fraction_evaluate=0.0, **options).start(
        grid, ArrayRecord(w_0), ROUNDS
    )
    exact = {"rtol": 0, "atol": 0}
    found = dict(result.arrays.to_torch_state_dict())
    assert_close(found, load_file(folder / "model.safetensors"), **exact)
    newest = load_file(max((folder / "checkpoint").iterdir()))
    for name, tensor in load_file(tmp_path / "state").items():
        # The served model, and the rule's memory.
        if not name.startswith(("..evaluation.", "..seed")):
            assert_close(tensor, newest[name], **exact)
