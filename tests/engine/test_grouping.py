"""Which clients train together: a fixed rule, and groups that depend on the cohort alone."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fednnnn_plugin.engine.grouping import group_clients, group_size
from fednnnn_plugin.errors import UserError
from fednnnn_plugin.models import MODELS, create_model

CPU, GPU = torch.device("cpu"), torch.device("cuda", 1)


def test_groups_worked_by_hand() -> None:
    """Batches of 5: clients 0, 3, 5 take two steps, 1 and 4 one, 2 three; the longest first."""
    sizes = [6, 5, 12, 10, 1, 6]
    assert group_clients([0, 1, 2, 3, 4, 5], sizes, 5, 2) == [(2,), (3, 0), (5,), (1, 4)]
    assert group_clients([0, 1, 2, 3, 4, 5], sizes, 5, 3) == [(2,), (3, 0, 5), (1, 4)]
    assert group_clients([4, 0, 2], sizes, 5, 9) == [(2,), (0,), (4,)]


def test_alone_they_stay_in_their_order() -> None:
    assert group_clients([4, 0, 2], [6, 5, 12, 10, 1], 5, 1) == [(4,), (0,), (2,)]


cohorts = st.lists(st.integers(1, 60), min_size=1, max_size=40).flatmap(
    lambda sizes: st.tuples(
        st.just(sizes),
        st.lists(st.sampled_from(range(len(sizes))), min_size=1, unique=True),
    )
)


@settings(deadline=None)
@given(cohort=cohorts, batch_size=st.integers(1, 20), most=st.integers(2, 12), random=st.randoms())
def test_groups_share_their_steps_and_depend_on_the_cohort_alone(
    cohort: tuple[list[int], list[int]], batch_size: int, most: int, random: object
) -> None:
    sizes, clients = cohort
    groups = group_clients(clients, sizes, batch_size, most)
    assert sorted(client for group in groups for client in group) == sorted(clients)
    steps = [{-(-sizes[client] // batch_size) for client in group} for group in groups]
    assert all(len(counts) == 1 for counts in steps)
    for group, following in pairwise(range(len(groups))):
        assert len(groups[group]) == most or steps[group] != steps[following]
    for group in groups:  # equal sizes are neighbours
        lengths = [sizes[client] for client in group]
        assert lengths == sorted(lengths, reverse=True)
    shuffled = random.sample(clients, len(clients))  # type: ignore[attr-defined]
    assert group_clients(shuffled, sizes, batch_size, most) == groups


@pytest.mark.parametrize("name", sorted(MODELS))
def test_auto_is_one_by_one_on_a_cpu_and_together_on_a_gpu(name: str) -> None:
    model = create_model(name, 0)
    assert group_size("auto", model, CPU, known=True) == 1
    assert group_size("auto", model, GPU, known=True) > 1
    for device in (CPU, GPU):
        assert group_size("off", model, device, known=True) == 1
        assert group_size("auto", model, device, known=False) == 1
        assert group_size(7, model, device, known=True) == 7


def test_a_number_for_what_is_not_ours_is_the_users_mistake() -> None:
    model = nn.Linear(1, 1)
    assert group_size(1, model, CPU, known=False) == 1
    with pytest.raises(UserError) as caught:
        group_size(2, model, CPU, known=False)
    assert str(caught.value) == (
        "train_args.client_batching: 2: must be auto or off: only the models nnnn_mnist, "
        "nnnn_cifar10, nnnn_digits on this package's data train together"
    )
