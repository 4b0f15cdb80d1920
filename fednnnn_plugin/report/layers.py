"""Which modules' norms the figures show."""

from collections.abc import Sequence

from fednnnn_plugin.report.runs import Run


def recorded_layers(runs: Sequence[Run]) -> list[str]:
    """Every module of which some run recorded norms, in the order of the first record."""
    return list(dict.fromkeys(module for run in runs for module in run.records.layers))


def shown_layers(runs: Sequence[Run]) -> tuple[str, ...]:
    """The last fully connected and the last convolutional module by name.

    On CIFAR-10 these are the paper's fc3 and conv32. For MNIST the paper does not name its layers;
    the same rule gives fc2 and conv2.
    """
    modules = recorded_layers(runs)
    shown = []
    for kind in ("fc", "conv"):
        alike = [module for module in modules if module.rpartition(".")[2].startswith(kind)]
        shown += alike[-1:]
    return tuple(shown)


def why_shown(dataset: str, module: str) -> str:
    """Why a module is shown, where the paper is the reason or the lack of one; else empty."""
    if dataset == "cifar10" and module in ("fc3", "conv32"):
        return "The paper shows it too."
    if dataset == "mnist" and module in ("fc2", "conv2"):
        return "The paper does not name the layer that it shows for MNIST; this is the last."
    return ""
