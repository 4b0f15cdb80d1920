from pathlib import Path

import yaml

from fednnnn_plugin.report.groups import Group, conditions, group_runs, single_clients
from fednnnn_plugin.report.runs import read_runs


def groups_of(*folders: Path) -> tuple[list[Group], list[str]]:
    return group_runs(read_runs(folders)[0])


def test_order_is_the_papers(make_run) -> None:
    folders = [
        make_run(method, dataset=dataset, partition=partition, sizes=sizes, rounds=3)
        for dataset in ("digits", "cifar10", "mnist")
        for partition in ("n_class", "iid")
        for sizes in ("power_law", "balanced")
        for method in ("FedNNNN", "PaperFedAvg")
    ]
    folders.append(make_run("PaperFedAvg", dataset="mnist", clients=1, rounds=3, name="single"))
    groups, warnings = groups_of(*folders)
    assert warnings == []
    names = [(c.dataset_name, c.name) for c in conditions(groups)]
    four = ["IID, B", "non-IID, B", "IID, UB", "non-IID, UB"]
    assert names == [
        *(("MNIST", name) for name in [*four, "single client"]),
        *(("CIFAR-10", name) for name in four),
        *(("digits", name) for name in four),
    ]
    first = next(iter(conditions(groups).values()))
    assert [group.label for group in first] == ["FedAvg", "FedNNNN"]
    assert [g.runs[0].name for g in single_clients(groups, "mnist")] == ["single"]
    assert single_clients(groups, "cifar10") == []


def test_seeds_are_one_group_and_other_settings_another(make_run) -> None:
    groups, warnings = groups_of(
        make_run("FedNNNN", seed=0, rounds=3, beta=0.7, gamma=0.8, name="a"),
        make_run("FedNNNN", seed=1, rounds=3, beta=0.7, gamma=0.8, name="b"),
        make_run("FedNNNN", seed=0, rounds=3, beta=0.6, gamma=0.8, name="c"),
        make_run("PaperFedAvg", seed=0, rounds=3, name="d"),
    )
    assert warnings == []
    assert [(g.label, [run.name for run in g.runs]) for g in groups] == [
        ("FedAvg", ["d"]),
        ("FedNNNN (β 0.6)", ["c"]),
        ("FedNNNN (β 0.7)", ["a", "b"]),
    ]


def test_what_changes_no_number_splits_nothing(make_run) -> None:
    first, second = make_run("FedNNNN", seed=0, rounds=3), make_run("FedNNNN", seed=1, rounds=3)
    values = yaml.safe_load((second / "recipe.yaml").read_text())
    values["data_args"]["data_cache_dir"] = "/elsewhere"
    values["comm_args"]["backend"] = "MPI"
    values["train_args"] |= {"checkpoint_every": 3, "learning_rate": "5e-2"}
    (second / "recipe.yaml").write_text(yaml.safe_dump(values))
    (group,), _ = groups_of(first, second)
    assert len(group.runs) == 2


def test_another_number_of_clients_is_another_condition(make_run) -> None:
    groups, _ = groups_of(
        make_run("FedNNNN", clients=20, rounds=3, name="a"),
        make_run("FedNNNN", clients=10, rounds=3, name="b"),
    )
    assert [g.condition.name for g in groups] == [
        "non-IID, B (K 10, m 10)",
        "non-IID, B (K 20, m 20)",
    ]


def test_same_settings_and_seed_count_once(make_run) -> None:
    groups, warnings = groups_of(
        make_run("FedNNNN", rounds=9, done=3, finished=False, name="short"),
        make_run("FedNNNN", rounds=9, name="long"),
    )
    assert [[run.name for run in g.runs] for g in groups] == [["long"]]
    assert warnings == [
        "short: settings and seed are long's; only the latter counts in tables and figures"
    ]


def test_records_without_a_recipe_are_a_method_of_their_own(make_run) -> None:
    folder = make_run("FedNNNN", rounds=3, name="my-aggregator")
    (folder / "recipe.yaml").unlink()
    (group,), _ = groups_of(folder)
    assert group.label == "my-aggregator"
    assert group.condition.name == "no recipe"


def test_a_run_without_rounds_is_in_no_group(make_run) -> None:
    assert groups_of(make_run("FedNNNN", done=0, finished=False))[0] == []
