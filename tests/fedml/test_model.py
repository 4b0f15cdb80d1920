"""The paper's networks by name in ``fedml.model.create``."""

from types import SimpleNamespace

import fedml
import pytest
import torch
from fedml.model import model_hub

import fednnnn_plugin as fp
from fednnnn_plugin.models import MODELS, create_model

fp.register()


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("create", [fedml.model.create, model_hub.create])
def test_it_is_the_model_that_the_seed_gives_and_no_global_generator_moves(name, create) -> None:
    state = torch.get_rng_state()
    made = create(SimpleNamespace(model=name, random_seed=3), 10)
    assert torch.equal(torch.get_rng_state(), state)
    expected = create_model(name, seed=3).state_dict()
    assert made.state_dict().keys() == expected.keys()
    assert all(torch.equal(made.state_dict()[key], expected[key]) for key in expected)


def test_both_places_hold_the_same_function() -> None:
    assert fedml.model.create is model_hub.create


def test_another_number_of_classes() -> None:
    made = fedml.model.create(SimpleNamespace(model="nnnn_mnist"), output_dim=62)
    assert made(torch.zeros(1, 1, 28, 28)).shape == (1, 62)
