"""The clients: an ordinary ClientApp, which needs nothing of fednnnn-plugin."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from task import Net, train, train_loader

app = ClientApp()


@app.train()
def train_here(message: Message, context: Context) -> Message:
    """Train the model that was sent, and reply with it."""
    torch.set_num_threads(1)
    where, config = context.node_config, context.run_config
    partition, number = int(where["partition-id"]), int(message.content["config"]["server-round"])
    torch.manual_seed(1_000 * number + partition)
    loader = train_loader(partition, int(where["num-partitions"]), int(config["batch-size"]))
    net = Net()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    loss = train(net, loader, int(config["local-epochs"]), float(config["learning-rate"]))
    metrics = MetricRecord({"train-loss": loss, "num-examples": len(loader.dataset)})
    content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics})
    return Message(content, reply_to=message)
