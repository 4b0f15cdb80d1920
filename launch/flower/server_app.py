"""The server: the same federation with each strategy, and at the end their accuracies."""

import logging
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from task import Net, test

from fednnnn_plugin import flower
from fednnnn_plugin.server.rules import RULES

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run all strategies from one initial model."""
    config, found = context.run_config, {}
    for name in str(config["strategies"]).split():
        torch.manual_seed(0)
        net = Net()
        keys = RULES[name].keys if name in RULES else ()  # of another name strategy() says so
        options = {key: config[key] for key in keys if key in config}
        if output := str(config["output"]):  # to be continued, and to be read by `fednnnn report`
            folder = Path(output, name)
            options |= {"metrics_path": folder, "state_path": folder / "state.safetensors"}
        strategy = flower.strategy(name, trainable=net, fraction_evaluate=0.0, **options)
        result = strategy.start(
            grid,
            ArrayRecord(net.state_dict()),
            num_rounds=int(config["num-server-rounds"]),
            evaluate_fn=evaluate,
        )
        found[name] = [m["accuracy"] for m in result.evaluate_metrics_serverapp.values()]
    for name, accuracies in found.items():
        text = f"{name}: accuracy {accuracies[-1]:.1%}, at best {max(accuracies):.1%} in this run"
        logging.getLogger("flwr").info(text)


def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Test the evaluation model."""
    net = Net()
    net.load_state_dict(arrays.to_torch_state_dict())
    loss, accuracy = test(net)
    return MetricRecord({"accuracy": accuracy, "loss": loss})
