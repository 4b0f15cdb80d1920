"""FedML's example with data and a model of one's own, step by step; alone or under mpirun.

python own_data_and_model.py --cf simulation.yaml
"""

import fedml
import torch
from fedml import FedMLRunner
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

CLASSES = 10


def load_data(args):
    """The digits as rows of 64 numbers; client k has every K-th of them."""
    digits = load_digits()
    x, y = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
    train, test = TensorDataset(x[:1500], y[:1500]), TensorDataset(x[1500:], y[1500:])
    clients = range(args.client_num_in_total)
    parts = {k: TensorDataset(*train[k :: args.client_num_in_total]) for k in clients}
    local = {k: DataLoader(part, args.batch_size, shuffle=True) for k, part in parts.items()}
    sizes = {k: len(part) for k, part in parts.items()}
    test_loader = DataLoader(test, args.batch_size)
    return [
        *(len(train), len(test), DataLoader(train, args.batch_size), test_loader),
        *(sizes, local, dict.fromkeys(clients, test_loader), CLASSES),
    ]


class LogisticRegression(torch.nn.Linear):
    """A custom model."""


if __name__ == "__main__":
    args = fedml.init()
    device = fedml.device.get_device(args)
    dataset = load_data(args)
    model = LogisticRegression(64, CLASSES)
    FedMLRunner(args, device, dataset, model).run()
