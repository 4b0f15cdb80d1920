"""FedML's cross-silo example with a trainer of one's own, step by step; the server by name.

python cross_silo_custom_trainer.py --cf fedml_config.yaml --rank 0 --role server
python cross_silo_custom_trainer.py --cf fedml_config.yaml --rank 1 --role client
"""

import fedml
import torch
from fedml import FedMLRunner
from fedml.core import ClientTrainer


class MomentumTrainer(ClientTrainer):
    """Trains with momentum, which no trainer of FedML's does."""

    def get_model_params(self):
        return self.model.cpu().state_dict()

    def set_model_params(self, model_parameters):
        self.model.load_state_dict(model_parameters)

    def train(self, train_data, device, args):
        model = self.model.to(device).train()
        optimizer = torch.optim.SGD(model.parameters(), lr=args.learning_rate, momentum=0.5)
        for _ in range(args.epochs):
            for x, y in train_data:
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(x.to(device)), y.to(device)).backward()
                optimizer.step()


if __name__ == "__main__":
    args = fedml.init()
    device = fedml.device.get_device(args)
    dataset, output_dim = fedml.data.load(args)
    model = fedml.model.create(args, output_dim)
    trainer = MomentumTrainer(model, args) if args.role == "client" else None
    FedMLRunner(args, device, dataset, model, client_trainer=trainer).run()
