"""What several of these tests share."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def threads() -> Iterator[None]:
    """Set the number of threads back."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
