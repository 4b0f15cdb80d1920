"""Sizes of clients by hand; test_partition.py has what holds for all."""

from fednnnn_plugin.data.client_sizes import client_sizes


def test_by_hand() -> None:
    assert client_sizes(11, 4, None, min_samples=10).tolist() == [3, 3, 3, 2]
    # 1 + 1/2 + 1/3 = 11/6; 22 images: 12, 6, 4
    assert client_sizes(22, 3, 1.0, min_samples=1).tolist() == [12, 6, 4]
    # 23 images: 12.55, 6.27, 4.18: the image left over goes to the largest remainder
    assert client_sizes(23, 3, 1.0, min_samples=1).tolist() == [13, 6, 4]
    # the law would give the last 4: it gets 5, and the others divide 17 as 2 to 1
    assert client_sizes(22, 3, 1.0, min_samples=5).tolist() == [11, 6, 5]
