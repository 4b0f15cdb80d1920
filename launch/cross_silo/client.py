"""A client of a FedML cross-silo federation that trains as the paper's clients do. A client of
your own needs no change: keep your trainer, or FedML's.

    python client.py --cf fedml_config.yaml --rank 1 --role client
"""

import fedml
from fedml import FedMLRunner

from fednnnn_plugin import FedNNNNClientTrainer

if __name__ == "__main__":
    args = fedml.init()
    device = fedml.device.get_device(args)
    dataset, output_dim = fedml.data.load(args)
    model = fedml.model.create(args, output_dim)
    trainer = FedNNNNClientTrainer(model, args)
    FedMLRunner(args, device, dataset, model, client_trainer=trainer).run()
