"""``fednnnn report``, ``partition`` and ``recipes``: what there is to look at."""

from pathlib import Path
from typing import Any

import click

from fednnnn_plugin.cli.shared import PATH, on_recipe, one_line_errors
from fednnnn_plugin.errors import UserError
from fednnnn_plugin.files import is_writable, write_atomically
from fednnnn_plugin.processes.endings import say


@click.command("report")
@click.argument("runs", metavar="RUN...", nargs=-1, type=PATH, required=True)
@click.option(
    "--out",
    type=PATH,
    default=Path("report"),
    show_default=True,
    help="Where tables, figures and index.html go.",
)
@click.option(
    "--layer",
    "layers",
    metavar="NAME",
    multiple=True,
    help="A module whose norms to show, such as fc3; may be repeated. Default: the last fc… and "
    "the last conv….",
)
@click.option(
    "--target",
    metavar="[NAME=]NUMBER",
    help="An accuracy, such as 0.9, or a value of the runs' first metric, or worst_10=0.6, of the "
    "worst tenth of the clients: which round reaches it first.",
)
@click.option(
    "--format",
    "formats",
    metavar="FORMATS",
    default="svg",
    help="Further formats of each figure beside SVG: pdf, png, or pdf,png.",
)
@click.option(
    "--hue",
    metavar="COLUMN",
    multiple=True,
    help="What tells lines apart, such as beta or method; may be repeated. Default: the "
    "method, and the settings that differ.",
)
@click.option("--overwrite", is_flag=True, help="Replace the report in --out.")
@one_line_errors
def report_command(runs: tuple[Path, ...], out: Path, formats: str, **options: Any) -> None:
    """Make tables, figures and a page from runs and studies, or folders of them."""
    from fednnnn_plugin.reporting.build import build_report

    names = [name.strip() for name in formats.split(",")]
    report = build_report(runs, out, formats=names, **options)
    for warning in report.warnings:
        say(f"warning: {warning}", err=True)
    say(report.text)
    say(f"page: {report.page}")


@click.command("partition")
@on_recipe
@click.option("--plot", type=PATH, help="Also a picture: .svg, .pdf or .png.")
@click.option("--csv", type=PATH, help="Also the counts: a file ending in .csv.")
@click.option("--overwrite", is_flag=True, help="Replace these files where they exist.")
@one_line_errors
def partition_command(
    recipe: str,
    overrides: tuple[str, ...],
    plot: Path | None,
    csv: Path | None,
    overwrite: bool,
    allow_code: bool,
) -> None:
    """Show how a recipe partitions its training samples among the clients."""
    for option, path, allowed in (
        ("--plot", plot, (".svg", ".pdf", ".png")),
        ("--csv", csv, (".csv",)),
    ):
        if path and path.suffix.lower() not in allowed:
            raise UserError(option, f"{path} must end in {', '.join(allowed)}")
        if path and path.is_dir():
            raise UserError(option, f"{path}: is a folder", "must be a file")
        if path and not is_writable(path):
            raise UserError(option, f"{path}: cannot be written to")
        if path and path.exists() and not overwrite:
            raise UserError(option, f"{path}: it is there already", "replace it with --overwrite")
    from fednnnn_plugin.data.federated import load_federated
    from fednnnn_plugin.data.partition import partition_name
    from fednnnn_plugin.data.titles import dataset_title
    from fednnnn_plugin.recipe import find_recipe, load_recipe
    from fednnnn_plugin.recipe.data_spec import data_spec
    from fednnnn_plugin.reporting.cells import as_csv
    from fednnnn_plugin.reporting.split_figures import counts_text, save_partition

    loaded = load_recipe(find_recipe(recipe), overrides, allow_code=allow_code)
    spec = data_spec(loaded)
    data = load_federated(spec)
    counts = data.class_counts()
    split = partition_name(spec.partition_method, spec.partition_sizes)
    split = "own split" if "split" in data.fingerprint else split
    title = f"{dataset_title(spec.dataset)}: {split}"
    size = f"{data.num_clients} clients, {sum(map(len, data.client_indices))} samples"
    say(f"{title}, {size}\n\n{counts_text(counts)}")
    if plot:
        save_partition(counts, title, plot)
        say(f"picture: {plot}")
    if csv:
        csv.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(csv.resolve(), as_csv(counts, index=True))
        say(f"counts: {csv}")


@click.group("recipes", invoke_without_command=True)
@click.pass_context
@one_line_errors
def recipes_command(context: click.Context) -> None:
    """List the recipes that come with the package, and whether their data is present."""
    if context.invoked_subcommand is None:
        from fednnnn_plugin.recipe.catalogue import catalogue

        say(catalogue())


@recipes_command.command("copy")
@click.argument("folder", metavar="DIR", type=PATH)
@one_line_errors
def copy_recipes(folder: Path) -> None:
    """Copy the recipes into a folder, to read and to change; no file is overwritten."""
    from fednnnn_plugin.packaged_recipes import copy_recipes as copy

    say(f"{copy(folder)} recipes copied to {folder}")
