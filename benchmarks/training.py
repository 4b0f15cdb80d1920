"""One round of the paper's federation: FedML's single process, a plain loop, and ours.

    python benchmarks/training.py mnist --clients 10
    python benchmarks/training.py cifar10 --clients 10
    python benchmarks/training.py resnet18 --clients 4

The paper's network, data, partition (K = 100, non-IID, balanced), epochs and batch size; the first
``--clients`` of the 100 train, so a whole round takes 100 / clients times as long. Every contender
does the same steps in a process of its own, started as its users would start it; they take turns,
``--repeats`` times. On MNIST also the same network as a user brings it, without and with dropout;
``resnet18`` is torchvision's on the images of CIFAR-10. Of training also the rate of its products
(convolutions and linear layers, counted by PyTorch's ``FlopCounterMode``) and its share of what one
large matrix product of the same precision reaches on the whole machine.
"""

import logging
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import click
from contenders import CONTENDERS, OWN, Measure, federated, settings
from harness import data_option, in_turn, show, spread
from products import DTYPES, ceiling, operations

from fednnnn_plugin.processes.devices import choose_gpu
from fednnnn_plugin.quantities import Seconds
from fednnnn_plugin.recipe import Recipe

_measure: Measure  # in a contender's process


def _recipe(problem: str, clients: int, precision: str, folder: Path) -> Recipe:
    if problem != "resnet18":
        return settings(f"{problem}_noniid_b", clients, precision, folder)
    recipe = settings("cifar10_noniid_b", clients, precision, folder)
    named = recipe.model_args.model_copy(update={"model": problem})
    return recipe.model_copy(update={"model_args": named})


def _prepare(name: str, problem: str, clients: int, folder: Path) -> None:
    global _measure  # noqa: PLW0603
    logging.disable(logging.INFO)
    make, precision = (CONTENDERS | OWN)[name]
    recipe = _recipe(problem, clients, precision, folder)
    _measure = make(recipe, federated(recipe), choose_gpu(say=False))


def _run() -> Seconds:
    return _measure()


@click.command(help=__doc__)
@click.argument("problem", type=click.Choice(["mnist", "cifar10", "resnet18"]))
@click.option("--clients", default=10, show_default=True)
@click.option("--repeats", default=3, show_default=True)
@click.option("--fp32", is_flag=True, help="Without bf16, which is slow where a CPU has none.")
@data_option
def main(problem: str, clients: int, repeats: int, fp32: bool, data: Path) -> None:
    contenders = CONTENDERS | (OWN if problem == "mnist" else {})
    precisions = ["fp32"] if fp32 else [*DTYPES]
    contenders = {name: given for name, given in contenders.items() if given[1] in precisions}
    recipe = _recipe(problem, clients, "fp32", data)
    flops = operations(recipe, federated(recipe))
    work: dict[str, Callable[[], Any]] = {
        precision: partial(ceiling, precision, choose_gpu(say=False)) for precision in precisions
    }
    with ExitStack() as pools:
        for name in contenders:
            prepare = partial(_prepare, name, problem, clients, data)
            pool = ProcessPoolExecutor(1, get_context("spawn"), prepare)
            pools.enter_context(pool)
            work[name] = lambda pool=pool: pool.submit(_run).result()
        results = in_turn(work, repeats)
    rows, reference = [], 0.0
    for name, (_, precision) in contenders.items():
        parts = {
            part: median(getattr(run, part) for run in results[name])
            for part in ("train", "aggregate", "evaluate")
        }
        both = [run.train + run.aggregate for run in results[name]]
        reference = reference or median(both)
        rate = flops / parts["train"]
        rows.append(
            (
                *(name, *(f"{seconds:.3f}" for seconds in parts.values()), spread(both)),
                *(f"{reference / median(both):.2f}", f"{rate / 1e9:.0f}"),
                f"{rate / median(results[precision]):.0%}",
            )
        )
    click.echo(f"{problem}, {clients} of 100 clients, one round, seconds, {repeats} repeats\n")
    columns = "train, aggregate, evaluate, train + aggregate, × FedML, GFLOP/s, of matmul"
    show(("", *columns.split(", ")), *rows)
    for precision in precisions:
        click.echo(f"matmul, {precision}: {median(results[precision]) / 1e9:.0f} GFLOP/s")


if __name__ == "__main__":
    main()
