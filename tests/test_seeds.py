"""Seeds by purpose, and generators that are given back as they were."""

import random
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from fednnnn_plugin.seeds import derive_seed, isolated_generators


@pytest.fixture(autouse=True)
def generators() -> Iterator[None]:
    """Leave the process's generators as they were found."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    yield
    random.setstate(states[0])
    np.random.set_state(states[1])  # noqa: NPY002
    torch.set_rng_state(states[2])


def draws(seed: int | None = None) -> tuple[float, ...]:
    """Draw from the global generators, seeded where a seed is given.

    Python's and NumPy's keep the second normal of a pair.
    """
    if seed is not None:
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        torch.manual_seed(seed)
    normal = np.random.randn()  # noqa: NPY002
    return random.random(), random.gauss(0, 1), normal, torch.rand(1).item()


def test_seeds_are_the_same_everywhere() -> None:
    """Were they to change, no stored run could be repeated."""
    assert derive_seed(0, "model") == 7249294538564161093
    assert derive_seed(42, "shuffle", 7, 99) == 6067186383186583642


def test_isolated_draws_depend_on_the_tuple_alone() -> None:
    seen = set()
    for start in (0, 1):
        expected = [draws(start), draws()]  # the second half of a pair of normals survives
        first = draws(start)
        with isolated_generators(9, "trainer", 4, 2):
            seen.add(draws())
            draws(77)  # foreign code may seed as well
            with isolated_generators(9, "trainer", 4, 3):
                assert draws() not in seen
        assert [first, draws()] == expected
    assert len(seen) == 1


def test_generators_are_given_back_after_an_error() -> None:
    expected = [draws(1), draws()]
    first = draws(1)
    with pytest.raises(TypeError), isolated_generators(1, "trainer"):
        draws("no seed")  # Python's takes it, NumPy's raises
    assert [first, draws()] == expected


def test_seed_of_an_unstarted_accelerator_is_kept(monkeypatch) -> None:
    """torch.manual_seed also notes a seed for GPUs that start later; ours must not outlive us."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    seeded: list[int] = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded.append)
    torch.manual_seed(1234)
    with isolated_generators(1, "trainer"):
        pass
    assert seeded == [1234]
