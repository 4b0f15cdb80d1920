"""How papers write the names of data sets; needs no torch."""

#: By the name that a recipe's ``dataset`` has; in this order tables show them.
TITLES = {
    "mnist": "MNIST",
    "cifar10": "CIFAR-10",
    "digits": "digits",
    "FashionMNIST": "Fashion-MNIST",
    "CIFAR100": "CIFAR-100",
    "leaf": "LEAF",
}


def dataset_title(name: str) -> str:
    """Return a data set's name as a paper has it; one without a title has its own."""
    return TITLES.get(name, name.removeprefix("<object>:"))
