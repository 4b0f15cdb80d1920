"""Which runs belong together, and the tables made of them."""

import json
import math
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

import fednnnn_plugin as fp
from fednnnn_plugin.report import tables
from fednnnn_plugin.report.build import build_report
from fednnnn_plugin.report.charts import condition_charts
from fednnnn_plugin.report.conditions import arrange

from .conftest import bare


def table_of(folder: Path) -> tables.Table:
    return tables.accuracy(arrange(fp.read_runs(folder)))


def curve(*accuracies: float | None):
    """Make the rounds' accuracies these."""
    return lambda line: line.update(test_acc=accuracies[line["round"] - 1])


def timed(line) -> None:
    """A round's accuracy and seconds."""
    bare(line, "seconds")


def every_tenth(line) -> None:
    """As under ``frequency_of_the_test: 10``."""
    line.update(test_acc=None if line["round"] % 10 else line["test_acc"])


def test_accuracy_table_by_hand(make_run) -> None:
    for seed, reached in ((0, (0.5, 0.9, 0.7, 0.8)), (1, (0.5, 0.6, 0.7, 0.6))):
        make_run("FedNNNN", dataset="mnist", seed=seed, change=curve(*reached))
        base = make_run("PaperFedAvg", dataset="mnist", seed=seed, change=curve(0.1, 0.2, 0.3, 0.2))
    make_run("Momentum", dataset="digits")
    table = table_of(base.parent)
    assert list(table.numbers["label"]) == ["FedAvg", "FedNNNN", "Momentum"]
    _, row, alone = table.numbers.to_dict("records")
    assert (row["best"], row["final"], row["seeds"]) == pytest.approx((0.8, 0.7, 2))
    assert row["best_sd"] == pytest.approx(math.sqrt(0.02))
    assert row["paper"] == 99.1
    assert row["seconds"] == pytest.approx(1.3)
    assert math.isnan(alone["best_sd"])
    assert table.rows["best − paper"][1] == "−19.1"
    assert "80.00 ± 14.14" in table.text()
    assert "Machine: cpu (A, 2 cores)." in table.notes
    assert table.strong == {(1, "best"), (1, "final")}
    runs = arrange(fp.read_runs(base.parent))
    assert tables.headline(runs[runs["data"] == "MNIST"]) == (
        "Best: FedNNNN, 80.00 ± 14.14 %, 50.0 points above FedAvg; "
        "4 of the paper's 100 rounds, 2 seeds."
    )


def test_conditions_and_methods_are_in_the_papers_order(make_run) -> None:
    for method in ("FedNNNN", "FedYogi", "PaperFedAvg", "FedAdam", "NormNorm"):
        make_run(method)
    make_run("FedNNNN", dataset="cifar10")
    make_run("FedNNNN", dataset="mnist", partition_method="dirichlet", partition_alpha=0.3)
    make_run("FedNNNN", dataset="mnist", partition_method="dirichlet_by_class")
    make_run("FedNNNN", dataset="mnist", partition_sizes="power_law")
    folder = make_run("FedNNNN", dataset="mnist", partition_method="iid")
    table = table_of(folder.parent).numbers
    assert list(zip(table["data"], table["condition"], table["label"], strict=True)) == [
        ("MNIST", "IID, B", "FedNNNN"),
        ("MNIST", "non-IID, UB", "FedNNNN"),
        ("MNIST", "Dirichlet by class (α 0.5)", "FedNNNN"),
        ("MNIST", "Dirichlet, B (α 0.3)", "FedNNNN"),
        ("CIFAR-10", "non-IID, B", "FedNNNN"),
        ("digits", "non-IID, B", "FedAvg"),
        ("digits", "non-IID, B", "Norm-Norm"),
        ("digits", "non-IID, B", "FedNNNN"),
        ("digits", "non-IID, B", "FedAdam"),
        ("digits", "non-IID, B", "FedYogi"),
    ]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"model": "resnet18"}, "model resnet18 (nnnn_mnist)"),
        ({"validation_fraction": 0.1}, "validation_fraction 0.1 (0)"),
        ({"client_weighting": "samples"}, "client_weighting samples (uniform)"),
        ({"precision": "bf16"}, "precision bf16 (fp32)"),
        ({"max_client_norm": 3.0}, "max_client_norm 3 (–)"),
        ({"comm_round": 3}, "comm_round 3 (100)"),
        ({"beta": 0.8}, "beta 0.8 (0.7)"),
        (
            {"partition_sizes": "power_law", "power_law_exponent": 0.1, "min_samples": 300},
            "power_law_exponent 0.1 (1), min_samples 300 (10)",
        ),
    ],
)
def test_run_unlike_the_papers_is_marked(make_run, changed: dict, said: str) -> None:
    folder = make_run("FedNNNN", **{"dataset": "mnist", "comm_round": 100, **changed})
    table = table_of(folder)
    assert table.rows["method"][0] == "FedNNNN*"
    assert said in table.notes[-1]


def test_run_like_the_papers_is_not_marked(make_run) -> None:
    folder = make_run("FedNNNN", dataset="mnist", comm_round=100, power_law_exponent=2.0)
    table = table_of(folder)
    assert (table.rows["method"][0], table.rows["paper"][0]) == ("FedNNNN", "99.1")
    part = make_run("FedNNNN", dataset="mnist", comm_round=100, done=7, finished=False)
    assert "7 rounds so far" in table_of(part).notes[-1]
    seldom = make_run("FedNNNN", dataset="mnist", comm_round=100, change=every_tenth)
    assert "90 rounds not tested (0)" in table_of(seldom).notes[-1]


def test_data_of_a_script_is_not_the_papers(make_run) -> None:
    folder = make_run("FedNNNN", dataset="mnist", comm_round=100)
    path = folder / "recipe.yaml"
    path.write_text(re.sub(r"  partition_.*\n", "", path.read_text()))
    row = table_of(folder).numbers.iloc[0]
    assert (row["condition"], row["paper"]) == ("own data", pytest.approx(math.nan, nan_ok=True))


def test_image_folders_are_conditions_of_their_own(make_run) -> None:
    make_run("FedNNNN", dataset="image_folder", data_dir="~/flowers")
    make_run("PaperFedAvg", dataset="image_folder", data_dir="~/leaves")
    folder = make_run("FedNNNN", dataset="image_folder", data_dir="/other/leaves")
    table = table_of(folder.parent).numbers
    assert len(table[["data", "condition"]].drop_duplicates()) == 3


@pytest.mark.parametrize(
    ("key", "one", "other", "labels"),
    [
        # Settings that differ in the seventh digit were merged as seeds.
        ("learning_rate", 0.05, 0.0500000001, ["(η 0.05)", "(η 0.0500000001)"]),
        ("model", "cnn", "resnet18", ["(model cnn)", "(model resnet18)"]),
    ],
)
def test_lines_are_split_by_settings(make_run, key, one, other, labels) -> None:
    make_run("FedNNNN", seed=0, **{key: one})
    folder = make_run("FedNNNN", seed=1, **{key: other})
    assert list(table_of(folder.parent).numbers["label"]) == [f"FedNNNN {of}" for of in labels]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("a:Lion", {}), ("b:Lion", {})),
        (("my:FedAvg", {}), ("your:FedAvg", {})),
        (("FedNNNN", {"max_client_norm": 1.0}), ("PaperFedAvg", {"max_client_norm": None})),
    ],
)
def test_lines_are_split_by_methods_and_clipping(make_run, one, other) -> None:
    folders = [make_run(method, seed=n, **of) for n, (method, of) in enumerate((one, other))]
    numbers = table_of(folders[0].parent).numbers
    assert list(numbers["seeds"]) == [1, 1]
    assert all(numbers["label"].str.contains("clipped to|:"))


def test_data_without_a_recipe_is_not_ranked(make_run) -> None:
    for name in ("mine", "yours"):
        (make_run("FedNNNN", name=name) / "recipe.yaml").unlink()
    with pytest.warns(UserWarning, match=r"recipe\.yaml"):
        runs = arrange(fp.read_runs(make_run("FedNNNN", name="ours").parent))
    of_unknown = runs[runs["data"] == "data not recorded"]
    assert of_unknown["run"].nunique() == 2
    assert tables.headline(of_unknown) == ""
    assert not tables.accuracy(runs).strong


def test_runs_of_one_seed_count_once_the_longer(make_run) -> None:
    make_run("FedNNNN", name="short", comm_round=8, done=3, finished=False)
    folder = make_run("FedNNNN", name="long", comm_round=8)
    problems: list[str] = []
    runs = arrange(fp.read_runs(folder.parent), problems)
    assert list(runs["run"].unique()) == ["long"]
    assert len(problems) == 1
    assert problems[0].startswith("short: ")


@pytest.mark.parametrize(
    ("nnnn", "base", "why"),
    [
        # It said "15.3 points above FedAvg" of 30 rounds against 10.
        ([{}], [{"done": 3}], "the runs have 3 to 20 rounds"),
        ([{"seed": 0}, {"seed": 1, "done": 3}], [{"done": 3}], "the runs have 3 to 20 rounds"),
        ([{"change": every_tenth}], [{}], "the runs have 2 to 20 tests"),
        # A mean over easy seeds led one over easy and hard ones.
        ([{"seed": 1}], [{"seed": 0}, {"seed": 1}], "the methods have different seeds"),
    ],
)
def test_headline_ranks_no_unequal_runs(make_run, nnnn, base, why) -> None:
    runs = [("FedNNNN", how) for how in nnnn] + [("PaperFedAvg", how) for how in base]
    folders = [make_run(method, comm_round=20, **how) for method, how in runs]
    arranged = arrange(fp.read_runs(folders[0].parent))
    assert tables.headline(arranged) == f"Not ranked: {why}."
    assert not tables.accuracy(arranged).strong


def test_headline_without_fedavg(make_run) -> None:
    make_run("Momentum", change=curve(0.5, 0.6, 0.7, 0.6))
    folder = make_run("FedNNNN", change=curve(0.5, 0.6, 0.8, 0.6))
    runs = arrange(fp.read_runs(folder.parent))
    assert tables.headline(runs) == "Best: FedNNNN, 80.00 %; 4 rounds, one seed."


def test_single_clients_are_split_by_settings(make_run) -> None:
    for rate in (0.05, 0.1):
        alone = {"client_num_in_total": 1, "client_num_per_round": 1}
        folder = make_run("PaperFedAvg", learning_rate=rate, **alone)
    labels = table_of(folder.parent).numbers["label"]
    assert list(labels) == [f"single client, FedAvg (η {rate})" for rate in (0.05, 0.1)]


def test_accuracy_table_counts_rounds(make_run) -> None:
    for seed, done in ((0, 8), (1, 3)):
        make_run("FedNNNN", comm_round=8, seed=seed, done=done)
    table = table_of(make_run("PaperFedAvg", comm_round=8, done=3).parent)
    assert list(table.rows["rounds"]) == ["3 of 8", "3 to 8 of 8"]


def test_accuracy_on_held_out_images_is_called_validation(make_run) -> None:
    held_out = make_run("FedNNNN", validation_fraction=0.2)
    assert table_of(held_out).title == "Validation accuracy (%)"
    make_run("PaperFedAvg")
    both = table_of(held_out.parent)
    assert both.title == "Test and validation accuracy (%)"
    assert "non-IID, B (held out 0.2) FedNNNN" in both.text()


@pytest.mark.parametrize("key", ["validation_fraction", "comm_round", "client_num_per_round"])
def test_setting_that_is_no_number_is_shown(make_run, key: str) -> None:
    folder = make_run("FedNNNN", dataset="mnist")
    path = folder / "recipe.yaml"
    path.write_text(re.sub(rf"({key}): .*", r"\1: abc", path.read_text()))
    assert f"{key} abc" in table_of(folder).notes[-1]
    assert fp.figures.agreement(fp.read_runs(folder)).lines


def test_run_without_accuracy_is_judged_by_loss(make_run) -> None:
    runs = arrange(fp.read_runs(make_run("FedNNNN", change=curve(None, None, None, None))))
    row = tables.accuracy(runs).rows.iloc[0]
    assert (row["metric"], float(row["best"])) == ("loss", round(runs["test_loss"].min(), 4))
    assert tables.rounds_to(runs, 0.5).rows["rounds"][0] == "1"
    assert tables.headline(runs) == ""


@pytest.mark.parametrize(
    ("base", "rounds"),
    [((0.1, 0.2, 0.3, 0.9), ["4", "2"]), ((0.1, 0.2, 0.3, 0.4), [">4", "2"])],
)
def test_rounds_to_accuracy_by_hand(make_run, base, rounds) -> None:
    make_run("PaperFedAvg", change=curve(*base))
    folder = make_run("FedNNNN", change=curve(0.1, 0.9, 0.9, 0.9))
    table = tables.rounds_to(arrange(fp.read_runs(folder.parent)), 0.8)
    assert list(table.rows["rounds"]) == rounds
    assert not table.notes
    seldom = make_run("FedNNNN", dataset="mnist", comm_round=20, change=every_tenth)
    table = tables.rounds_to(arrange(fp.read_runs(seldom)), 0.3)
    assert list(table.rows["rounds"]) == ["10"]
    assert table.notes


def test_rounds_to_accuracy_count_the_seeds_that_reach_it(make_run) -> None:
    """It said ``>30.0 ± 0.0``, a deviation of what was cut off."""
    make_run("FedNNNN", seed=0, change=curve(0.1, 0.9, 0.9, 0.9))
    runs = fp.read_runs(make_run("FedNNNN", seed=1, change=curve(0.1, 0.2, 0.2, 0.2)).parent)
    (row,) = tables.rounds_to(arrange(runs), 0.8).rows.to_dict("records")
    assert (row["seeds"], row["reached it"], row["rounds"]) == ("2", "1", ">4")


def test_times_of_different_machines_are_not_shown(make_run) -> None:
    folders = [make_run(method, change=timed) for method in ("FedNNNN", "PaperFedAvg")]
    (folders[0] / "summary.json").write_text('{"rounds": 4, "device": "cpu (B, 2 cores)"}')
    runs = arrange(fp.read_runs(*folders))
    table = tables.accuracy(runs)
    assert "s a round" not in table.rows
    assert table.numbers["seconds"].isna().all()
    assert {f"Machine cpu ({name}, 2 cores): " in " ".join(table.notes) for name in "AB"} == {True}
    assert "seconds" not in {c.name for c in condition_charts(runs, runs.iloc[:0], ())}


@pytest.mark.slow
@pytest.mark.parametrize(("waited", "shown"), [(None, True), (0.05, True), (0.5, False)])
def test_times_of_runs_that_waited_are_not_shown(
    make_run, waited: float | None, shown: bool
) -> None:
    """A round takes 1.3 s; of one run it is not known how long it waited for a core."""

    def change(line: dict) -> None:
        timed(line)
        line["seconds"]["waited"] = waited

    runs = arrange(fp.read_runs(make_run("FedNNNN"), make_run("PaperFedAvg", change=change)))
    table = tables.accuracy(runs)
    assert ("s a round" in table.rows) is shown
    assert table.numbers["seconds"].notna().all() == shown
    assert ("seconds" in {c.name for c in condition_charts(runs, runs.iloc[:0], ())}) is shown


def test_latex_compiles(make_run, tmp_path: Path) -> None:
    """42 times "Unicode character β"; a ``>`` was printed as ¿."""
    for seed in (0, 1):
        for beta in (0.5, 0.7):
            make_run("FedNNNN", dataset="mnist", seed=seed, beta=beta)
    runs = arrange(fp.read_runs(make_run("my:规_>~&A", dataset="mnist").parent))
    texts = [tables.accuracy(runs).latex(), tables.rounds_to(runs, 0.99).latex()]
    assert all(text.replace("–", "").isascii() for text in texts)
    for part in (r"\beta", r"\pm", r"\toprule", r"lllr", "[U+89C4]", r"\footnotesize", "$*$"):
        assert part.replace("$*$", "*") in texts[0]
    assert "$>$4" in texts[1]
    if pdflatex := shutil.which("pdflatex"):
        body = "\n\n".join(texts)
        head = r"\documentclass[landscape]{article}\usepackage{booktabs}\begin{document}"
        (tmp_path / "t.tex").write_text(head + "\n" + body + "\n\\end{document}")
        command = [pdflatex, "-interaction=nonstopmode", "-halt-on-error", "t.tex"]
        ended = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
        assert ended.returncode == 0, ended.stdout[-2000:]


def test_markdown_escapes_names(make_run, tmp_path: Path) -> None:
    build_report([make_run("my_rules:A|b_$<1>", change=bare)], tmp_path / "out")
    assert "A\\|b\\_$\\<1\\>" in (tmp_path / "out" / "README.md").read_text()


@pytest.mark.parametrize("lower", [False, True])
def test_first_metric_judges(make_run, lower: bool) -> None:
    """Values 0.5, 0.25, 0.75 of FedAvg and 0.5, 0.125, 0.25 of FedNNNN, as the recipe's first."""
    values = {"PaperFedAvg": (0.5, 0.25, 0.75), "FedNNNN": (0.5, 0.125, 0.25)}

    for method, of in values.items():
        own = dict(enumerate(of, 1))
        folder = make_run(
            method,
            comm_round=3,
            change=lambda line, own=own: line.update(
                test_metrics={"second": 1.0, "own": own[line["round"]]}
            ),
        )
        recipe = yaml.safe_load((folder / "recipe.yaml").read_text())
        recipe["validation_args"] = {"metrics": ["mine:own", "second"]}
        (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
        summary = {"rounds": 3, "metric": "own", "higher_is_better": not lower}
        (folder / "summary.json").write_text(json.dumps(summary))
    runs = arrange(fp.read_runs(folder.parent))
    table = tables.accuracy(runs)
    assert [*table.rows["metric"]] == ["own", "own"]
    assert [*table.rows["best"]] == (["0.2500", "0.1250"] if lower else ["0.7500", "0.5000"])
    assert [*table.rows["final"]] == ["0.7500", "0.2500"]
    best = 1 if lower else 0
    assert (best, "best") in table.strong
    assert (1 - best, "best") not in table.strong
    assert ("FedNNNN, own 0.1250" if lower else "FedAvg, own 0.7500") in tables.headline(runs)
    rounds = tables.rounds_to(runs, 0.25).numbers["rounds"].tolist()
    assert rounds == ([2, 2] if lower else [1, 1])
    assert fp.summary(fp.read_runs(folder.parent))["metric"].tolist() == ["own", "own"]


def test_rounds_to_a_value_of_a_metric(make_run, tmp_path: Path) -> None:
    by_loss = arrange(fp.read_runs(make_run("FedNNNN", change=curve(None, None, None, None))))
    assert tables.rounds_to(by_loss, 20.0).title == "Rounds to loss 20"
    with pytest.raises(fp.UserError, match="--target"):
        build_report([make_run("FedNNNN", change=bare)], tmp_path / "out", target=1.5)
