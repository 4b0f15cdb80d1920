"""A federation's process, whose client waits before it trains.

It waits while a file ``hold-RANK-ROUND`` is there, and notes in ``trained-RANK`` what it trains.
With ``--role server`` it is the server.
"""

import time
from pathlib import Path

import fedml
from fedml import FedMLRunner

from fednnnn_plugin import FedNNNNAggregator, FedNNNNClientTrainer


class Held(FedNNNNClientTrainer):
    def train(self, train_data, device, args):
        with Path(f"trained-{args.rank}").open("a") as file:
            file.write(f"{args.round_idx}\n")
        while Path(f"hold-{args.rank}-{args.round_idx}").exists():
            time.sleep(0.05)
        super().train(train_data, device, args)


if __name__ == "__main__":
    args = fedml.init()
    device = fedml.device.get_device(args)
    dataset, output_dim = fedml.data.load(args)
    model = fedml.model.create(args, output_dim)
    if args.role == "server":
        own = {"server_aggregator": FedNNNNAggregator(model, args)}
    else:
        own = {"client_trainer": Held(model, args)}
    FedMLRunner(args, device, dataset, model, **own).run()
