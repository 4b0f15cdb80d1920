"""A client's part of a federation's data."""

from torch import Tensor

from fednnnn_plugin.data.federated import FederatedData


def client_data(data: FederatedData, client: int) -> tuple[Tensor, Tensor]:
    """A client's inputs [n_k, …], normalised, and labels [n_k]."""
    indices = data.client_indices[client]
    return data.normalised(data.train_images[indices]), data.train_labels[indices]
