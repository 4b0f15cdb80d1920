"""What the recipes that come with the package are: a table of text."""

from itertools import groupby
from operator import itemgetter

from fednnnn_plugin.data.sets import is_present
from fednnnn_plugin.packaged_recipes import list_recipes
from fednnnn_plugin.recipe.load import load_recipe

_COLUMNS = (
    *("data set", "classes", "sizes", "method", "client method", "clients", "rounds", "data"),
    "name",
)


def catalogue() -> str:
    """What each packaged recipe is, and whether its data is there: a table of text."""
    rows = []
    for path in sorted(list_recipes(), key=lambda path: not path.stem.startswith("digits")):
        recipe = load_recipe(path)
        data, train = recipe.data_args, recipe.train_args
        iid = data.partition_method == "iid"
        rows.append(
            (
                data.dataset,
                "all" if iid else f"{data.classes_per_client} a client",
                data.partition_sizes.replace("_", " "),
                train.federated_optimizer,
                train.client_method or recipe.rule.client_method or "",
                f"{train.client_num_in_total:>7}",
                f"{train.comm_round:>6}",
                "present" if is_present(data.dataset, data.cache_dir) else "missing",
                path.stem,
            )
        )
    widths = [max(map(len, column)) for column in zip(_COLUMNS, *rows, strict=True)]

    def line(cells: tuple[str, ...]) -> str:
        padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        return "  ".join(padded).rstrip()

    lines = ["Recipes: fednnnn run NAME", "", line(_COLUMNS)]
    for _, group in groupby(rows, key=itemgetter(slice(3))):
        first, *others = group
        lines += ["", line(first), *(line(("", "", "", *row[3:])) for row in others)]
    return "\n".join(lines)
