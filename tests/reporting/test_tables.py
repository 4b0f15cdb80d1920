"""Which runs belong together, and the tables made of them."""

import json
import math
import re
import subprocess
from pathlib import Path

import pytest

import fednnnn_plugin as fp
from fednnnn_plugin.data.sets import DATASETS
from fednnnn_plugin.data.titles import TITLES
from fednnnn_plugin.recipe.schema import TrainArgs
from fednnnn_plugin.reporting import tables
from fednnnn_plugin.reporting.charts import condition_charts
from fednnnn_plugin.reporting.conditions import SYMBOLS, arrange
from fednnnn_plugin.reporting.paper import unlike_paper
from fednnnn_plugin.reporting.typeset import Table, latex

from .conftest import curve


def table_of(folder: Path) -> Table:
    return tables.accuracy(arrange(fp.read_runs(folder)))


def directed(folder: Path, **higher_is_better: bool) -> None:
    """Give a run the metrics of its recipe, of each whether higher is better."""
    text = json.dumps({"higher_is_better": higher_is_better})
    (folder / "metric_directions.json").write_text(text)


def every_tenth(line: dict) -> None:
    """Test every tenth round."""
    line.update(test_acc=None if line["round"] % 10 else line["test_acc"])


def test_summary_and_table_by_hand(make_run) -> None:
    """What is bold is the best of what is printed, over the seeds that each method has."""
    for seed, reached in ((0, (0.5, 0.9, 0.7, 0.8)), (1, (0.5, 0.6, 0.7, 0.6))):
        make_run("FedNNNN", dataset="mnist", seed=seed, change=curve(*reached))
        make_run("PaperFedAvg", dataset="mnist", seed=seed, change=curve(0.1, 0.2, 0.3, 0.2))
    folder = make_run("Momentum", dataset="mnist", change=curve(0.1, 0.7, 0.7, 0.7004))
    runs = fp.read_runs(folder.parent)
    table = tables.accuracy(arrange(runs))
    cells = dict(zip(table.rows["method"], table.rows["best"], strict=True))
    assert cells == {
        "FedAvg*": "30.00 ± 0.00 (2)",
        "Momentum*": "70.04 (1)",
        "FedNNNN*": "80.00 ± 14.14 (2)",
    }
    assert list(table.rows["final"]) == ["20.00 ± 0.00 (2)", "70.04 (1)", "70.00 ± 14.14 (2)"]
    assert table.strong == {(2, "best"), (1, "final")}
    assert any("seeds differ" in note for note in table.notes)
    alike = tables.accuracy(arrange(runs[runs["method"] != "Momentum"]))
    assert alike.strong == {(1, "best"), (1, "final")}
    assert not any("seeds differ" in note for note in alike.notes)
    row = {"data": "MNIST", "condition": "non-IID, B", "label": "FedNNNN", "method": "FedNNNN"}
    row |= {"seeds": 2, "rounds": 4, "metric": "accuracy"}
    row |= {"best": 0.8, "best_sd": math.sqrt(0.02), "final": 0.7, "final_sd": math.sqrt(0.02)}
    for target, reached, rounds in ((0.55, 2, 2.0), (0.85, 1, math.nan)):
        row |= {"reached": reached, "rounds_to_target": rounds}
        found = fp.summary(runs, target=target).set_index("method", drop=False)
        assert found.loc["FedNNNN"].to_dict() == pytest.approx(row, nan_ok=True)


def test_conditions_have_the_papers_names(make_run) -> None:
    for settings, condition in (
        ({"partition_method": "dirichlet", "partition_alpha": 0.3}, "MNIST Dirichlet, B (α 0.3)"),
        ({"partition_method": "dirichlet_by_class"}, "MNIST Dirichlet by class (α 0.5)"),
        ({"dataset": "cifar10", "partition_sizes": "power_law"}, "CIFAR-10 non-IID, UB"),
        ({"partition_method": None}, "MNIST own data"),  # of a script's loaders
        ({"dataset": "image_folder", "data_dir": "~/a"}, "a (image_folder) non-IID, B"),
        ({"dataset": "FashionMNIST"}, "Fashion-MNIST non-IID, B"),
        ({"dataset": "hf:a/b"}, "hf:a/b non-IID, B"),
    ):
        run = fp.read_runs(make_run("FedNNNN", **{"dataset": "mnist"} | settings)).iloc[0]
        assert f"{run['data']} {run['condition']}" == condition
    assert TITLES.keys() <= DATASETS.keys()


def test_run_unlike_the_papers_is_marked() -> None:
    settings = {"dataset": "mnist", "comm_round": 100}
    balanced, power_law = (("mnist", f"non-IID, {sizes}", "FedNNNN") for sizes in ("B", "UB"))
    uneven = {"power_law_exponent": 0.1, "min_samples": 300}
    for changed, said in (
        ({"model": "resnet18", "beta": 0.8}, "model resnet18 (nnnn_mnist), beta 0.8 (0.7)"),
        ({"max_client_norm": 3.0}, "max_client_norm 3 (–)"),
        ({"client_sampling": "my:s"}, "client_sampling my:s (uniform)"),
        ({"epochs": None, "local_steps": 300}, "local_steps 300 (–)"),
        ({"learning_rate_schedule": "cosine"}, "learning_rate_schedule cosine (–)"),
        ({"train_transform": "my:flip"}, "train_transform my:flip (–)"),
        ({"holdout": 0.2}, "holdout 0.2 (–)"),
        ({"client_availability": "trace.csv"}, "client_availability trace.csv (–)"),
        ({"loss": "cross_entropy", "client_sampling": "uniform", "learning_rate_decay": 1.0}, ""),
        (dict.fromkeys(("loss", "client_sampling", "learning_rate_decay")), ""),  # others have them
        (uneven, "power_law_exponent 0.1 (1), min_samples 300 (10)"),
    ):
        assert unlike_paper(power_law, settings | changed, 100, 0) == said
    # Balanced clients have no such settings.
    assert unlike_paper(balanced, settings | uneven, 100, 0) == ""


def test_papers_accuracy_goes_by_the_method_not_by_the_label(make_run) -> None:
    """Also where the label is another method's name; a client method makes another one."""
    for method, label, more in (
        ("FedNNNN", "ours", {}),
        ("NormNorm", "FedProx", {}),
        ("PaperFedAvg", "Momentum", {"client_method": "fedsam"}),
    ):
        folder = make_run(method, dataset="mnist", comm_round=100, **more)
        with (folder / "recipe.yaml").open("a") as file:
            file.write(f"tracking_args: {{label: {label}}}\n")
    numbers = table_of(folder.parent).numbers.set_index("label")
    paper = {"ours": 99.1, "FedProx": 99.0, "Momentum": math.nan}
    assert numbers["paper"].to_dict() == pytest.approx(paper, nan_ok=True)


def test_run_unlike_the_papers_is_marked_in_tables(make_run) -> None:
    run = make_run("FedNNNN", dataset="mnist", comm_round=100, done=30, change=every_tenth)
    said = "in brackets: 30 rounds (100), 27 rounds not tested (0)."
    assert table_of(run).notes[-1].endswith(said)


ALONE = {"client_num_in_total": 1, "client_num_per_round": 1}
OFF = {"method": "FedNNNN", "max_client_norm": None}


@pytest.mark.parametrize(
    ("one", "other", "labels"),
    [
        ({"learning_rate": 0.05}, {"learning_rate": 0.0500000001}, "FedNNNN (η {learning_rate})"),
        ({"method": "a:Lion"}, {"method": "b:Lion"}, "Lion (is {method})"),
        ({"method": "my:FedAvg"}, {"method": "your:FedAvg"}, "{method}"),
        (OFF, {"method": "Own", "max_client_norm": 1}, "{method} (clipped to {max_client_norm})"),
        (ALONE | {"epochs": 3}, ALONE | {"epochs": 4}, "single client, FedNNNN (epochs {epochs})"),
    ],
)
def test_lines_are_split_by_methods_and_settings(make_run, one, other, labels: str) -> None:
    for seed, settings in enumerate((one, other)):
        folder = make_run(**{"method": "FedNNNN", **settings}, seed=seed)
    lines = arrange(fp.read_runs(folder.parent)).drop_duplicates("label")
    expected = [labels.format(**settings).replace("None", "–") for settings in (one, other)]
    assert list(lines["label"]) == expected


@pytest.mark.parametrize(
    "key", [key for key, of in TrainArgs.model_fields.items() if of.default is None]
)
def test_setting_that_one_method_alone_has_is_named(make_run, key: str) -> None:
    """But for what is the method."""
    make_run("PaperFedAvg", **{key: None})
    folder = make_run("FedNNNN", **{key: "my"})
    labels = arrange(fp.read_runs(folder.parent))["label"].unique()
    name, is_method = SYMBOLS.get(key, key), key == "client_method"
    expected = (
        ["FedAvg", "FedNNNN + my"] if is_method else [f"FedAvg ({name} –)", f"FedNNNN ({name} my)"]
    )
    assert list(labels) == expected


@pytest.mark.parametrize("key", sorted({key for of in DATASETS.values() for key in of.arguments}))
def test_methods_on_other_data_are_not_ranked(make_run, key: str) -> None:
    make_run("PaperFedAvg", dataset="a")
    folder = make_run("FedNNNN", dataset="a", **{key: "my"})
    conditions = arrange(fp.read_runs(folder.parent))["condition"].unique()
    assert {*conditions} == {f"non-IID, B ({key} –)", f"non-IID, B ({key} my)"}


def test_weights_of_clients_drawn_by_size_are_not_the_settings(make_run) -> None:
    for sampling, are_said in (("uniform", True), ("by_size", False)):
        given = {"client_weighting": "samples", "client_sampling": sampling}
        lines = arrange(fp.read_runs(make_run("FedNNNN", name=sampling, **given)))
        assert ("weights samples" in tables.settings(lines)) == are_said


def test_data_without_a_recipe_is_not_ranked(make_run) -> None:
    """Names like numbers stay text."""
    for name in ("1:30", "2:30"):
        (make_run("FedNNNN", name=name) / "recipe.yaml").unlink()
    for seed, name in enumerate(("01", "1")):
        folder = make_run("FedNNNN", dataset="image_folder", data_dir=name, seed=seed)
    with pytest.warns(UserWarning, match=r"recipe\.yaml"):
        runs = arrange(fp.read_runs(folder.parent))
    assert {*runs["data"]} == {"01 (image_folder)", "1 (image_folder)", "data not recorded"}
    of_unknown = runs[runs["data"] == "data not recorded"]
    assert {*of_unknown["method"]} == {"1:30", "2:30"}
    assert not tables.accuracy(runs).strong


def test_runs_of_one_seed_count_once_the_longer(make_run) -> None:
    make_run("FedNNNN", name="a-short", comm_round=8, done=3)
    folder = make_run("FedNNNN", name="long", comm_round=8)
    make_run("FedNNNN", name="shorter", comm_round=8, done=2)
    problems: list[str] = []
    runs = arrange(fp.read_runs(folder.parent), problems)
    assert list(runs["run"].unique()) == ["long"]
    assert [problem.partition(": ")[0] for problem in problems] == ["a-short", "shorter"]


def test_runs_of_one_seed_that_a_hue_puts_together_are_told(make_run) -> None:
    for seed, rate in ((0, 0.1), (0, 0.2), (1, 0.1)):
        folder = make_run("FedNNNN", name=f"{seed}-{rate}", seed=seed, learning_rate=rate)
    runs = fp.read_runs(folder.parent)
    note = "FedNNNN: several runs of one seed, each of which counts as a seed."
    for hue, told in (("method", True), (["method", "learning_rate"], False)):
        arranged = arrange(runs, hue=hue)
        for table in (tables.accuracy(arranged), tables.rounds_to(arranged, 0.5)):
            assert (note in table.notes) == told


def test_line_of_several_methods_or_settings_has_no_accuracy_of_the_papers(make_run) -> None:
    """Nor does a line name a setting that its runs do not share."""
    given = {"dataset": "mnist", "comm_round": 100, "done": 100}
    for seed, rate in ((0, 0.05), (1, 0.1)):
        make_run("PaperFedAvg", name=f"{rate}", seed=seed, learning_rate=rate, **given)
    folder = make_run("FedNNNN", **given)
    runs = arrange(fp.read_runs(folder.parent), hue="method")
    average, nnnn = tables.accuracy(runs).rows["paper"]
    assert (average, nnnn) == ("–", "99.1")
    assert "η 0.05" not in tables.settings(runs[runs["method"] == "FedAvg"])
    mixed = tables.accuracy(arrange(fp.read_runs(folder.parent), hue="batch_size"))
    assert "paper" not in mixed.rows
    assert mixed.numbers["method"].tolist() == ["FedAvg, FedNNNN"]


def test_alpha_that_the_partition_does_not_use_tells_no_seeds_apart(make_run) -> None:
    for seed, alpha in ((0, 0.5), (1, 0.3)):
        given = {"seed": seed, "partition_alpha": alpha, "dataset": "mnist", "comm_round": 100}
        folder = make_run("FedNNNN", name=f"{alpha}", done=100, **given)
    assert list(tables.accuracy(arrange(fp.read_runs(folder.parent))).rows["paper"]) == ["99.1"]


@pytest.mark.parametrize(
    ("nnnn", "base", "why", "rounds"),
    [
        ([{}, {"seed": 1, "done": 3}], {}, "rounds", ["20", "3 to 20 of 20"]),
        ([{"change": every_tenth}], {}, "tests", ["20", "20"]),
    ],
)
def test_unequal_runs_have_no_best(make_run, nnnn, base, why, rounds) -> None:
    make_run("PaperFedAvg", comm_round=20, **base)
    for how in nnnn:
        folder = make_run("FedNNNN", comm_round=20, **how)
    table = tables.accuracy(arrange(fp.read_runs(folder.parent)))
    assert not table.strong
    assert any(re.match(f"digits non-IID, B: no best: .* to 20 {why}", n) for n in table.notes)
    assert list(table.rows["rounds"]) == rounds


@pytest.mark.parametrize(
    ("summary", "finished", "rounds"),
    [
        ({"rounds": 3, "stopped": "has reached the target 0.7"}, True, "stopped at 3"),
        ({"rounds": 2}, False, "3 of 20"),  # of a shorter run, which is being extended
        ({"rounds": 3}, False, "3 of 20"),
    ],
)
def test_finished_run_has_all_rounds_or_was_stopped(make_run, summary, finished, rounds) -> None:
    folder = make_run("FedNNNN", comm_round=20, done=3)
    (folder / "summary.json").write_text(json.dumps(summary))
    runs = fp.read_runs(folder)
    assert set(runs["finished"]) == {finished}
    assert list(tables.accuracy(arrange(runs)).rows["rounds"]) == [rounds]
    extended = make_run("FedNNNN", comm_round=3)  # which has its last round, and has not ended
    (extended / "summary.json").write_text(json.dumps({"rounds": 2}))
    assert not fp.read_runs(extended)["finished"].any()


@pytest.mark.parametrize(("fraction", "named"), [(0.2, "0.2"), (1 / 6, "1/6"), (0.1667, "0.1667")])
def test_accuracy_on_held_out_images_is_called_validation(make_run, fraction, named) -> None:
    held_out = make_run("FedNNNN", validation_fraction=fraction)
    assert table_of(held_out).title == "Validation accuracy (%)"
    both = table_of(make_run("PaperFedAvg").parent)
    assert both.title == "Test and validation accuracy (%)"
    assert f"non-IID, B (held out {named}) FedNNNN" in both.text()


@pytest.mark.parametrize(
    ("seeds", "reached", "median"),
    [
        ([(0.1, 0.2, 0.3, 0.4)], "0/1", "–"),
        ([(0.1, None, None, 0.9)], "1/1", "4"),
        ([(0.1, 0.8, 0.9, 0.9), (0.1, 0.2, 0.3, 0.9)], "2/2", "3"),
        ([(0.1, 0.9, 0.9, 0.9), (0.1, 0.2, 0.2, 0.2)], "1/2", "–"),
        ([(0.9, 0.9, 0.9, 0.9), (0.1, 0.2, 0.2, 0.2), (0.1, 0.2, 0.9, 0.2)], "2/3", "3"),
    ],
)
def test_rounds_to_accuracy_by_hand(make_run, seeds, reached: str, median: str) -> None:
    """A seed that does not get there is later than all that do."""
    for seed, accuracies in enumerate(seeds):
        folder = make_run("FedNNNN", seed=seed, change=curve(*accuracies))
    runs = arrange(fp.read_runs(folder.parent))
    with pytest.raises(fp.UserError, match=r"^--target: 1\.5: an accuracy"):
        tables.rounds_to(runs, 1.5)
    table = tables.rounds_to(runs, 0.8)
    (row,) = table.rows.to_dict("records")
    assert (row["reached by"], row["median round"]) == (f"{reached} seeds", median)
    assert (len(table.notes) == 2) == (None in seeds[0])


@pytest.mark.slow
@pytest.mark.parametrize("device", ["A", "B"])
def test_times_of_several_machines_are_not_shown(make_run, device: str) -> None:
    make_run("FedNNNN")
    other = make_run("PaperFedAvg")
    (other / "summary.json").write_text(json.dumps({"device": f"cpu ({device}, 2 cores)"}))
    runs = arrange(fp.read_runs(other.parent))
    table, shown = tables.accuracy(runs), device == "A"
    assert ("s a round" in table.rows) == table.numbers["seconds"].notna().all() == shown
    assert table.numbers["minutes"].tolist() == pytest.approx([4 * 1.3 / 60] * 2)
    assert table.rows["min a run"].tolist() == ["0.1", "0.1"]
    assert any("cpu (A, 2 cores): digits non-IID, B" in note for note in table.notes) == shown
    charts = {chart.name: chart for chart in condition_charts(runs, runs.iloc[:0], (), [])}
    assert ("seconds" in charts) == shown
    assert not shown or "cpu (A, 2 cores)" in charts["seconds"].caption


def latex_tables(make_run) -> list[str]:
    for seed in (0, 1):
        for beta in (0.5, 0.7):
            make_run("FedNNNN", dataset="mnist", seed=seed, beta=beta)
    runs = arrange(fp.read_runs(make_run("my:规_>~&A", dataset="mnist").parent))
    return [tables.accuracy(runs).latex(), tables.rounds_to(runs, 0.99).latex()]


def test_latex_has_letters_that_pdflatex_knows(make_run) -> None:
    texts = latex_tables(make_run)
    assert all(text.isascii() for text in texts)
    for part in (r"\beta", r"\pm", r"\toprule", r"lllr", "[U+89C4]", r"\footnotesize", "*"):
        assert part in texts[0]
    assert "4 seeds" not in texts[1]
    assert r"{\footnotesize Rounds to an accuracy of 99 \%.}" in texts[1]
    rows = [line for line in texts[0].splitlines() if line.endswith(r"\\")][1:]
    assert all(row.startswith("{}") for row in rows)  # after \\\\ a bracket is an argument
    assert latex("[1]--*?`") == "[1]-{}-*?{}`"


@pytest.mark.pdflatex
def test_latex_compiles(make_run, tmp_path: Path) -> None:
    head = r"\documentclass[landscape]{article}\usepackage{booktabs}\begin{document}"
    document = "\n\n".join([head, *latex_tables(make_run), r"\end{document}"])
    (tmp_path / "t.tex").write_text(document)
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "t.tex"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
    assert ended.returncode == 0, ended.stdout[-2000:]


@pytest.mark.parametrize("lower", [False, True])
def test_first_metric_judges(make_run, lower: bool) -> None:
    for method in ("PaperFedAvg", "FedNNNN"):
        folder = make_run(method, comm_round=3)
        directed(folder, own=not lower, second=True)
    measured = {"own": [0.5, 0.25, 0.75, 0.5, 0.125, 0.25], "second": 1.0}
    read = fp.read_runs(folder.parent)
    runs = arrange(read.assign(**{f"test_metrics.{name}": of for name, of in measured.items()}))
    table = tables.accuracy(runs)
    assert [*table.rows["metric"]] == [*fp.summary(runs)["metric"]] == ["own", "own"]
    assert [*table.rows["best"]] == (
        ["0.2500 (1)", "0.1250 (1)"] if lower else ["0.7500 (1)", "0.5000 (1)"]
    )
    assert [*table.rows["final"]] == ["0.7500 (1)", "0.2500 (1)"]
    assert table.strong == {(int(lower), "best"), (int(lower), "final")}
    rounds = tables.rounds_to(runs, 0.25).numbers["median"].tolist()
    assert rounds == ([2, 2] if lower else [1, 1])


@pytest.mark.parametrize(
    ("names", "best"),
    [
        (["eval_loss"], ("eval_loss", 0.5)),
        (["eval_loss", "f1"], ("f1", 0.75)),
        (["neg_log_loss"], ("neg_log_loss", 0.75)),
    ],
)
def test_metric_that_ends_in_loss_is_better_if_lower(make_run, names, best: tuple) -> None:
    """As a Flower app's ``eval_loss``, which no recipe names; another metric judges before it."""
    values = dict.fromkeys(names, 0.75)

    def change(line: dict) -> None:
        line.update(test_acc=None, test_loss=None, test_metrics=dict(values))
        values[names[0]] = 0.5

    runs = fp.read_runs(make_run("FedNNNN", change=change))
    (row,) = fp.summary(runs).to_dict("records")
    assert (row["metric"], row["best"]) == best


def test_runs_without_a_seed_are_no_repetitions(make_run) -> None:
    """A Flower server's folder does not say what its clients trained on, nor how."""
    for seed in range(3):
        folder = make_run("FedNNNN", seed=seed)
    runs = fp.read_runs(folder.parent)
    names = [*runs["run"].unique()]
    lines = fp.summary(runs.assign(seed=runs["seed"].where(runs["run"] == names[2])))
    assert lines["label"].tolist() == ["FedNNNN", *(f"FedNNNN ({name})" for name in names[:2])]
    assert fp.summary(runs.assign(seed=None), hue="method")["seeds"].tolist() == [3]


def test_seeds_are_judged_by_one_quantity(make_run) -> None:
    """Seed 0 diverged at once: no loss is on record, and its metrics do not stand in for it."""
    losses = iter([None] * 4 + [4.0, 2.0, 1.0, 1.0, 4.0, 3.0, 2.0, 2.0])
    for seed in range(3):
        how = {"change": lambda line: line.update(test_acc=None, test_loss=next(losses))}
        folder = make_run("FedNNNN", seed=seed, **how)
    runs = fp.read_runs(folder.parent)
    table = tables.accuracy(arrange(runs))
    assert [*table.rows["metric"]] == ["loss"]
    assert [*table.rows["best"]] == [*table.rows["final"]] == ["1.5000 ± 0.7071 (2)"]
    assert "digits non-IID, B FedNNNN: 1 of 3 seeds has no loss." in table.notes
    (row,) = fp.summary(runs).to_dict("records")
    assert (row["seeds"], row["metric"], row["best"]) == (3, "loss", 1.5)
    table = tables.rounds_to(arrange(runs), 2.0)
    assert (table.title, *table.rows["median round"]) == ("Rounds to loss 2", "3")


def test_recipes_with_other_first_metrics_are_other_lines(make_run) -> None:
    directed(make_run("FedNNNN"), f1_macro=True)
    runs = fp.read_runs(make_run("FedNNNN", seed=1).parent)
    runs["test_metrics.f1_macro"] = runs["metric"].map({"f1_macro": 0.25})
    table = tables.accuracy(arrange(runs))
    found = dict(zip(table.rows["method"], table.rows["metric"], strict=True))
    labels = {"FedNNNN (metric f1_macro)": "f1_macro", "FedNNNN (metric –)": "accuracy (%)"}
    assert found == labels


@pytest.mark.parametrize(
    ("tested", "final"), [((3,), "60.00 (1)"), ((3, 4), "–"), (None, "60.00 (1)")]
)
def test_final_value_is_of_the_last_tested_round(make_run, tested, final: str) -> None:
    """Round 4 has no number: it was not tested, or none was finite. Older records do not say it."""

    def change(line: dict) -> None:
        line.update(test_acc=0.6 if line["round"] == 3 else None, test_loss=None)
        line.update({} if tested is None else {"tested": line["round"] in tested})

    table = table_of(make_run("FedNNNN", change=change))
    assert (table.rows["best"][0], table.rows["final"][0]) == ("60.00 (1)", final)
    said = "digits non-IID, B FedNNNN: 1 of 1 seeds has no accuracy in the last round."
    assert (said in table.notes) == (final == "–")


def test_further_final_values_are_of_the_last_test_too(make_run) -> None:
    """The second metric has none in round 4, which was tested."""

    def change(line: dict) -> None:
        own = {"first": 1.0} | ({"second": 2.0} if line["round"] < 4 else {})
        line.update(test_acc=None, tested=True, test_metrics=own)

    folder = make_run("FedNNNN", change=change)
    (folder / "metric_directions.json").write_text('{"higher_is_better": {"first": true}}')
    table = table_of(folder)
    assert (table.rows["final"][0], table.rows["final second"][0]) == ("1.0000 (1)", "–")


@pytest.mark.parametrize("name", ["accuracy", "top5 (%)"])
def test_custom_metric_is_in_its_own_unit(make_run, name: str) -> None:
    """An accuracy in per cent, as of a client of Flower's, is no share, whatever it is called."""
    own = {"test_metrics": {name: 94.0}}
    folder = make_run("FedNNNN", change=lambda line: line.update(own, test_acc=None))
    runs = arrange(fp.read_runs(folder))
    table = tables.accuracy(runs)
    assert (table.title, table.rows["metric"][0]) == (f"Test {name}", name)
    assert (table.rows["best"][0], table.rows["final"][0]) == ("94.0000 (1)", "94.0000 (1)")
    assert tables.rounds_to(runs, 94.0).title == f"Rounds to {name} 94"
    both = table_of(make_run("PaperFedAvg", change=lambda line: line.update(own)))
    assert both.title == "Test accuracy (%)"
    assert both.rows[f"final {name}"][0] == "94.0000 (1)"


@pytest.mark.parametrize(
    "differ",
    [
        {"client_num_per_round": 50},
        {"client_num_in_total": 200},
        {"classes_per_client": 3},
        {"min_samples": 5},
    ],
)
def test_partitions_of_other_settings_are_other_conditions(make_run, differ) -> None:
    make_run("FedNNNN", min_samples=10)
    folder = make_run("FedNNNN", seed=1, **{"min_samples": 10} | differ)
    runs = arrange(fp.read_runs(folder.parent))
    assert (runs["condition"].nunique(), runs["label"].nunique()) == (2, 1)
    assert list(fp.summary(runs)["seeds"]) == [1, 1]


def test_held_out_shares_of_own_splits_are_other_conditions(make_run) -> None:
    split = json.dumps({"split": {"positions": "1"}, "data": {"tensors": "2"}})
    for seed, share in enumerate((0.2, 0.8, "null")):  # 0.2 by default
        folder = make_run("FedNNNN", seed=seed)
        (folder / "fingerprint.json").write_text(split)
        with (folder / "recipe.yaml").open("a") as recipe:
            recipe.write(f"validation_args: {{per_client: true, holdout: {share}}}\n")
    assert sorted(fp.summary(fp.read_runs(folder.parent))["seeds"]) == [1, 2]


def test_training_without_the_clients_test_parts_is_another_condition(make_run) -> None:
    for seed, tested in enumerate(("per_client: true", "per_client: end, holdout: 0.2", "{}")):
        with (make_run("FedNNNN", seed=seed) / "recipe.yaml").open("a") as recipe:
            recipe.write(f"validation_args: {{{tested.strip('{}')}}}\n")
    runs = fp.read_runs(make_run("FedNNNN", seed=3).parent)
    assert fp.summary(runs)["seeds"].tolist() == [2, 2]
    assert set(arrange(runs)["condition"]) == {"non-IID, B (holdout 0.2)", "non-IID, B (holdout –)"}
