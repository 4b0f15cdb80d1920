"""What several of these tests share."""

from collections.abc import Iterator

import pytest
import torch

from fednnnn_plugin.server.rules import RULES


@pytest.fixture
def threads() -> Iterator[None]:
    """Set the number of threads back."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def rules_taken_back() -> Iterator[None]:
    """Forget the rules that a test registers."""
    before = dict(RULES)
    yield
    RULES.clear()
    RULES.update(before)
