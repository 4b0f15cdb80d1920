"""Sizes of clients: by hand, and as the law has them."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fednnnn_plugin.data.client_sizes import client_sizes


def test_by_hand() -> None:
    assert client_sizes(11, 4, None, min_samples=10).tolist() == [3, 3, 3, 2]
    # 1 + 1/2 + 1/3 = 11/6; 22 images: 12, 6, 4
    assert client_sizes(22, 3, 1.0, min_samples=1).tolist() == [12, 6, 4]
    # 23 images: 12.55, 6.27, 4.18: the image left over goes to the largest remainder
    assert client_sizes(23, 3, 1.0, min_samples=1).tolist() == [13, 6, 4]
    # the law would give the last 4: it gets 5, and the others divide 17 as 2 to 1
    assert client_sizes(22, 3, 1.0, min_samples=5).tolist() == [11, 6, 5]


@given(
    num_clients=st.integers(1, 60),
    spare=st.integers(0, 5_000),
    exponent=st.floats(0, 200),
    min_samples=st.integers(1, 30),
)
def test_power_law_properties(
    num_clients: int, spare: int, exponent: float, min_samples: int
) -> None:
    num_images = num_clients * min_samples + spare
    sizes = client_sizes(num_images, num_clients, exponent, min_samples)
    assert sizes.sum() == num_images
    assert sizes.min() >= min_samples
    assert (np.diff(sizes) <= 0).all()
    above = sizes > min_samples
    quotas = np.arange(1, num_clients + 1, dtype=float) ** -exponent
    scale = (num_images - (~above).sum() * min_samples) / max(quotas[above].sum(), 1e-300)
    assert (np.abs(sizes - scale * quotas)[above] <= 1 + 1e-9 * num_images).all() or spare < 2
