"""The server of a FedML cross-silo federation, with FedNNNN as its rule: FedML's own script, and
the two lines marked +.

    python server.py --cf fedml_config.yaml --rank 0 --role server
"""

import fedml
from fedml import FedMLRunner

from fednnnn_plugin import FedNNNNAggregator  # +

if __name__ == "__main__":
    args = fedml.init()
    device = fedml.device.get_device(args)
    dataset, output_dim = fedml.data.load(args)
    model = fedml.model.create(args, output_dim)
    aggregator = FedNNNNAggregator(model, args)  # +
    FedMLRunner(args, device, dataset, model, server_aggregator=aggregator).run()
