"""FedML's healthcare examples in small: custom metrics, on the clients' data alone.

python healthcare.py --cf server.yaml --rank 0 --role server
python healthcare.py --cf fedml_config.yaml --rank 1 --role client
"""

import fedml
import torch
from fedml import FedMLRunner
from fedml.core import ServerAggregator
from own_data_and_model import CLASSES, LogisticRegression, load_data


class PerHospital(ServerAggregator):
    """Counts over every client's test data; the server itself has none."""

    def get_model_params(self):
        return self.model.cpu().state_dict()

    def set_model_params(self, model_parameters):
        self.model.load_state_dict(model_parameters)

    def test(self, test_data, device, args):
        pass

    def test_all(self, train_data_local_dict, test_data_local_dict, device, args):
        self.model.to(device).eval()
        correct = total = 0
        with torch.no_grad():
            for hospital in test_data_local_dict.values():
                for x, y in hospital:
                    correct += int((self.model(x.to(device)).argmax(1) == y.to(device)).sum())
                    total += len(y)
        return {"test_correct": correct, "test_total": total, "test_loss": 0.0}


if __name__ == "__main__":
    args = fedml.init()
    device = fedml.device.get_device(args)
    dataset = load_data(args)
    dataset[3] = None  # of all data
    model = LogisticRegression(64, CLASSES)
    FedMLRunner(args, device, dataset, model, server_aggregator=PerHospital(model, args)).run()
