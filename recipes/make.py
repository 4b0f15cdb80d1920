"""Writes the recipes of the paper's 40 conditions, and Fashion-MNIST's: ``python recipes/make.py``.

What the conditions differ in stands in ``fednnnn_plugin/reporting/paper.csv`` (the paper's tables
tab:accuracy and tab:params2), which the report compares runs with; what they share, in table
tab:params. Each recipe is whole by itself: it needs neither this program nor the table.
"""

import csv
from pathlib import Path

HERE = Path(__file__).parent
TABLE = HERE.parent / "fednnnn_plugin" / "reporting" / "paper.csv"
DATA_SETS = {  # tab:params; the seconds are of our engine
    "mnist": {"title": "MNIST", "rounds": 100, "decay": "0.0", "time": "37 s"},
    "cifar10": {"title": "CIFAR-10", "rounds": 250, "decay": "0.0005", "time": "5 minutes"},
}
FASHION = "FashionMNIST"  # torchvision's name; the settings are MNIST's under this condition
FASHION_CONDITION = "non-IID, B"
OPTIMIZERS = {  # by the paper's names, as recipes/README.md has them
    "FedAvg": "PaperFedAvg",
    "FedProx": "PaperFedProx",
    "Norm-Norm": "NormNorm",
    "Momentum": "Momentum",
    "FedNNNN": "FedNNNN",
}
CLASSES = {
    "IID": ("with images of all classes", ("partition_method: iid",)),
    "non-IID": (
        "of exactly two classes each",
        ("partition_method: n_class", "classes_per_client: 2"),
    ),
}
SIZES = {
    "B": ("all of one size", ("partition_sizes: balanced",)),
    "UB": (
        "their sizes by a power law",
        ("partition_sizes: power_law", "power_law_exponent: 1.0"),
    ),
}
TEMPLATE = """\
# {method} on {title}, {classes}-{sizes}: {known}.
# 100 clients {with_classes}, {with_sizes}.
{exponent}# A round takes about {time} on two CPU cores in fp32.
common_args:
  training_type: simulation
  random_seed: 0
  using_mlops: false

data_args:
  dataset: {dataset}
  data_cache_dir: ~/fedml_data
  download: true
  {partition}

model_args:
  model: {model}

train_args:
  {optimizer}
  client_num_in_total: 100
  client_num_per_round: 100
  comm_round: {rounds}
  epochs: 5
  batch_size: 50
  client_optimizer: sgd
  learning_rate: 0.05
  weight_decay: {decay}

validation_args:
  frequency_of_the_test: 1

device_args:
  using_gpu: true
  gpu_id: 0
  gpu_mapping_file: null
  gpu_mapping_key: null

comm_args:
  backend: sp

tracking_args:
  enable_wandb: false
"""


def written_recipes() -> dict[str, str]:
    """Return the text of each recipe, by its file's name."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    fashion = [[FASHION, *row[1:]] for row in rows if row[:2] == ["mnist", FASHION_CONDITION]]
    recipes = {}
    for dataset, condition, method, accuracy, *coefficients in rows + fashion:
        is_papers = dataset in DATA_SETS
        settings = DATA_SETS[dataset if is_papers else "mnist"]
        classes, sizes = condition.split(", ")
        with_classes, by_classes = CLASSES[classes]
        with_sizes, by_sizes = SIZES[sizes]
        given = zip(header[4:], coefficients, strict=True)
        optimizer = [f"federated_optimizer: {OPTIMIZERS[method]}"]
        optimizer += [f"{key}: {value}" for key, value in given if value]
        exponent = "# The paper gives no exponent of it; 1.0 is our choice.\n"
        parts = (dataset, classes, sizes, method)
        name = "_".join(part.replace("-", "").lower() for part in parts)
        recipes[f"{name}.yaml"] = TEMPLATE.format(
            dataset=dataset,
            model=f"nnnn_{dataset if is_papers else 'mnist'}",
            known=f"the paper reports {accuracy} %"
            if is_papers
            else "the paper's settings for MNIST",
            classes=classes,
            sizes=sizes,
            method=method,
            with_classes=with_classes,
            with_sizes=with_sizes,
            exponent=exponent if sizes == "UB" else "",
            partition="\n  ".join((*by_classes, *by_sizes)),
            optimizer="\n  ".join(optimizer),
            **(settings if is_papers else settings | {"title": "Fashion-MNIST"}),
        )
    return recipes


if __name__ == "__main__":
    for name, text in written_recipes().items():
        (HERE / name).write_text(text, encoding="utf-8")
