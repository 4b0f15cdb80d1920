"""Seeds by purpose, and generators that are given back as they were."""

import random
from contextlib import suppress

import numpy as np
import pytest
import torch

from fednnnn_plugin.seeds import derive_seed, isolated_generators


def draws(seed: int | None = None) -> tuple[float, ...]:
    """Draw from the global generators; Python's and NumPy's keep the second normal of a pair."""
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


def test_isolated_draws_depend_on_the_tuple_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = set()
    for start in (0, 1):
        expected = [draws(start), draws()]  # the second half of a pair of normals survives
        first = draws(start)
        with suppress(KeyError), isolated_generators(9, "trainer", 4, 2):
            seen.add(draws())
            draws(77)  # foreign code may seed as well, and raise
            with isolated_generators(9, "trainer", 4, 3):
                assert draws() not in seen
            raise KeyError
        assert [first, draws()] == expected
    assert len(seen) == 1
    # torch.manual_seed sets the seed of GPUs that start later, too.
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.cuda, "manual_seed_all", pytest.fail)
    with isolated_generators(1, "trainer"):
        pass
