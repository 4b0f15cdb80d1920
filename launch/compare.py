"""Compare the methods on digits: each tuned by the same procedure, then run with other seeds.

  python launch/compare.py                                                     # all: hours on a CPU
  python launch/compare.py --methods FedAvg,FedNNNN --conditions two_classes_all --page runs/page

Procedure, for each method in each condition: `fednnnn tune --no-paper` with 12 trials of 20 rounds,
judged by the final accuracy on a sixth of the training images, held out, in the mean of two seeds;
the three best of them with three more seeds, of which the best in the mean of all is chosen; then
five other seeds, tested on the test images. A run that ends because no client's update is finite
any more counts as chance. The same command continues after any stop; the page is written once all
runs are there.
"""

import argparse
import gzip
import json
import logging
import shutil
from itertools import product
from pathlib import Path

import click
import yaml
from comparison import (
    CANDIDATES,
    CONDITIONS,
    METHODS,
    MORE_SEEDS,
    REFERENCE,
    ROUNDS,
    SEEDS,
    TUNING_SEEDS,
    Settings,
    final_accuracy,
    write_page,
)

import fednnnn_plugin as fp

RECIPE = "digits_noniid_b_fedavg"
COMMON: Settings = {"comm_round": ROUNDS, "epochs": 1, "using_gpu": False, "worker_num": 1}


def whole(run: Path) -> bool:
    """Return whether a run has made all rounds: one that was stopped has a summary as well."""
    summary = run / "summary.json"
    return summary.exists() and bool(json.loads(summary.read_text())["rounds"] == ROUNDS)


def run(recipe: Path, settings: Settings, output: Path) -> float:
    """Make a run, or what is left of it; return its final accuracy in per cent."""
    try:
        fp.run(recipe, overrides=settings, output=output, resume="auto")
    except fp.RunError as error:
        click.echo(f"{output}: {error}")
    return final_accuracy((output / "metrics.jsonl").read_bytes())


def chosen(folder: Path, found: fp.Tuning, keys: list[str]) -> Settings:
    """Return the settings of the best trial, the best ones tried with more seeds."""
    best = found.trials.nlargest(CANDIDATES, "value")
    for index, trial in best.iterrows():
        first = found.folder / trial["folder"] / f"seed{TUNING_SEEDS[0]}"
        finals = [100 * trial["value"]] * len(TUNING_SEEDS)
        for seed in MORE_SEEDS:
            output = folder / "candidates" / Path(trial["folder"]).name / f"seed{seed}"
            finals.append(run(first / "recipe.yaml", {"random_seed": seed}, output))
        best.loc[index, "mean_final"] = sum(finals) / len(finals)
    best[[*keys, "value", "mean_final"]].to_csv(folder / "candidates.csv", index=False)
    settings: Settings = best.loc[best["mean_final"].idxmax(), keys].astype(float).to_dict()
    return settings


def make(work: Path, condition: str, name: str) -> None:
    """Tune a method in a condition and run it with the other seeds; what is there is kept."""
    method, folder = METHODS[name], work / condition / name
    of_condition = CONDITIONS[condition][1] | COMMON | method.settings
    needed = {key: values[0] for key, values in method.grid.items() if key != "learning_rate"}
    if all(whole(folder / f"seed{seed}") for seed in SEEDS):
        return
    found = fp.tune(
        RECIPE,
        grid={key: list(values) for key, values in method.grid.items()},
        overrides=of_condition | needed,
        metric="final_accuracy",
        seeds=TUNING_SEEDS,
        paper=False,
        study=folder / "study",
        resume=True,
    )
    settings = chosen(folder, found, [*method.grid]) | {"validation_fraction": 0.0}
    for seed in SEEDS:
        run(found.recipe, settings | {"random_seed": seed}, folder / f"seed{seed}")
    click.echo(f"{condition}: {name}: done")


def keep(work: Path, page: Path, condition: str, name: str) -> None:
    """Copy what the page is made of."""
    source, target = work / condition / name, page / condition / name
    target.mkdir(parents=True, exist_ok=True)
    for seed in SEEDS:
        records = (source / f"seed{seed}" / "metrics.jsonl").read_bytes()
        packed = gzip.compress(records, 9, mtime=0)
        (target / f"seed{seed}.jsonl.gz").write_bytes(packed)
    recipe = yaml.safe_load((source / "seed0" / "recipe.yaml").read_text())
    recipe["data_args"]["data_cache_dir"] = "~/fedml_data"
    (target / "tuned.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False))
    for table in ("study/trials.csv", "candidates.csv"):
        shutil.copy(source / table, target)


def main() -> None:
    """Make what lacks, then the page."""
    as_it_is = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=as_it_is)
    option, some = parser.add_argument, "some of them, by commas; all by default"
    option("--work", type=Path, default=Path("runs/compare"), help="studies and runs")
    option("--page", type=Path, default=Path("results/comparison"), help="page and its records")
    option("--methods", default=",".join(METHODS), help=some)
    option("--conditions", default=",".join(CONDITIONS), help=some)
    asked = parser.parse_args()
    names, conditions = asked.methods.split(","), asked.conditions.split(",")
    for given, known in ((names, METHODS), (conditions, CONDITIONS)):
        if unknown := {*given} - {*known}:
            parser.error(f"{', '.join(sorted(unknown))}: must be some of {', '.join(known)}")
    compared = all((asked.page / each / REFERENCE).is_dir() for each in conditions)
    if REFERENCE not in names and not compared:
        parser.error(f"--methods: must have {REFERENCE}, to which the others are compared")
    logging.getLogger("fednnnn_plugin").setLevel(logging.WARNING)
    for condition, name in product(conditions, names):
        make(asked.work, condition, name)
    for condition, name in product(conditions, names):
        keep(asked.work, asked.page, condition, name)
    there = write_page(asked.page)
    click.echo(f"page: {asked.page / 'README.md'}")
    if lacking := [name for name in names if name not in there]:
        click.echo(f"not on it, as one of its conditions lacks them: {', '.join(lacking)}")


if __name__ == "__main__":
    main()
