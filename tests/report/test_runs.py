"""Run folders as a table."""

import gzip
import json
import re
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import fednnnn_plugin as fp
from fednnnn_plugin.report.conditions import arrange
from fednnnn_plugin.report.runs import layers, read_folders

from .conftest import bare


def test_read_runs_has_a_row_per_round(make_run) -> None:
    folder = make_run("PaperFedAvg", seed=7, comm_round=3, weight_decay="5e-4", image_size=[64, 48])
    runs = fp.read_runs(folder)
    assert list(runs["round"]) == [1, 2, 3]
    first = runs.iloc[0]
    assert (first["run"], first["method"], first["seed"]) == (folder.name, "FedAvg", 7)
    assert (first["dataset"], first["model"]) == ("digits", "nnnn_digits")
    assert (first["weight_decay"], first["image_size"]) == (5e-4, "64 × 48")
    assert (first["finished"], first["device"]) == (True, "cpu (A, 2 cores)")
    line = json.loads((folder / "metrics.jsonl").read_text().splitlines()[0])
    assert first["test_acc"] == line["test_acc"]
    assert first["layers.fc2.mean_update_norm"] == line["layers"]["fc2"]["mean_update_norm"]
    assert first["client_norm_median"] == line["client_norms"][1]
    assert first["seconds.train"] == 1.0
    assert np.isnan(first["served_test_acc"])
    assert layers(runs) == ["conv1", "conv2", "fc1", "fc2"]
    assert "data_cache_dir" not in runs


def test_read_runs_of_several_folders(make_run, study: Path) -> None:
    one = make_run("FedNNNN", beta=0.7, max_client_norm=1.5)
    two = make_run("PaperFedAvg", max_client_norm=None)
    (two / "summary.json").unlink()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        runs = fp.read_runs(one.parent, one, study)
    assert dict(runs.groupby("run", sort=False).size()) == {one.name: 4, two.name: 4}
    assert list(runs.groupby("run")["finished"].first()) == [True, False]
    for name in ("beta", "max_client_norm"):
        assert runs[name].isna().sum() == 4


def test_setting_named_like_a_column_keeps_its_section(make_run) -> None:
    """As a key of a user's own rule may be: as what was measured, and as what we add."""
    settings = {"round": 7, "layers.fc1.mean_update_norm": 8.0, "clients": 0.5, "label": 0.5}
    runs = fp.read_runs(make_run("my_rules:Own", **settings))
    assert set(runs["method"]) == {"Own"}
    assert runs.columns.is_unique
    assert list(runs["round"]) == [1, 2, 3, 4]
    assert (runs["layers.fc1.mean_update_norm"] < 8.0).all()
    for name, value in settings.items():
        assert set(runs[f"train_args.{name}"]) == {value}
    assert set(arrange(runs)["label"]) == {"Own"}


def test_records_packed_with_gzip(make_run) -> None:
    folder = make_run(
        "FedNNNN", comm_round=50, change=lambda line: line.update(clients=line["round"])
    )
    before = fp.read_runs(folder)
    plain = folder / "metrics.jsonl"
    packed = gzip.compress(plain.read_bytes())
    plain.unlink()
    (folder / "metrics.jsonl.gz").write_bytes(packed)
    assert fp.read_runs(folder).equals(before)
    (folder / "metrics.jsonl.gz").write_bytes(packed[:-400])  # cut: what is whole is kept
    with pytest.warns(UserWarning, match=r"metrics\.jsonl\.gz"):
        assert 0 < len(fp.read_runs(folder)) < 50


@pytest.mark.parametrize(
    "damaged",
    [
        '{"round": 2, "client_norms": [1, 2]}',
        '{"round": 2, "test_acc": 1.5}',
        '{"round": 2, "mean_update_norm": -1}',
        '{"round": 2, "mean_update_norm": 1' + "0" * 400 + "}",
        '{"round": 2, "layers": {"fc2": {"mean_update_norm": [1]}}}',
        '{"round": 0, "test_acc": 0.5}',
        '{"round": 2.5, "test_acc": 0.5}',
        '{"round": 2, "seconds": {"train": 1e308}}',
        "{}",
        '{"round": 2, "test_acc',
        "[" * 100_000,
    ],
)
def test_damaged_line_is_left_out_with_a_warning(make_run, damaged: str) -> None:
    folder = make_run("FedNNNN")
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    (folder / "metrics.jsonl").write_text("\n".join([lines[0], damaged, *lines[2:]]) + "\n")
    with pytest.warns(UserWarning, match=r"metrics\.jsonl: line 2: ") as said:
        assert list(fp.read_runs(folder)["round"]) == [1, 3, 4]
    assert len(said) == 1


def test_missing_number_is_no_damage(make_run) -> None:
    """``client_norms: [null, 2, 3]`` ended the report in a traceback; a metric cost its round."""
    own = {"client_norms": [None, 2, 3], "test_metrics": {"test_acc": 85.3, "vast": 1e200}}
    own |= {"test_loss": -0.5, "layers": {"": {"mean_update_norm": 1.0}}}  # of a bare parameter
    runs = fp.read_runs(make_run("FedNNNN", change=lambda line: line.update(own)))
    for name, lacks in (("norm_min", True), ("norm_max", False)):
        assert runs[f"client_{name}"].isna().all() == lacks
    assert (runs["test_metrics.test_acc"] == 85.3).all()
    assert runs["test_metrics.vast"].isna().all()
    assert (runs["test_loss"] == -0.5).all()
    assert layers(runs) == [""]
    assert "linear" in fp.figures.loss(runs).get_yscale()


def test_endless_file_is_read_up_to_its_limit(make_run, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_run("FedNNNN")
    size = (folder / "metrics.jsonl").stat().st_size
    monkeypatch.setattr("fednnnn_plugin.report.runs.MAX_METRICS_BYTES", size - 10)
    with pytest.warns(UserWarning, match=rf"after line 3: .* larger than {size - 10} bytes"):
        assert list(fp.read_runs(folder)["round"]) == [1, 2, 3]


@pytest.mark.parametrize(
    ("bound", "value", "rounds", "said"),
    [
        ("runs.MAX_ROUNDS", 2, [1, 2], "more than 2 rounds"),
        ("runs.MAX_DAMAGED", 1, [1, 3], "line 2: .* and 2 more"),
        ("room.MAX_CELLS", 100, [1, 3], "line 2: .* and 1 more"),
        (
            "room.MAX_COLUMNS",
            {"layers": 2, "settings": 99},
            [1, 3, 4],
            "many metrics or layers: 10",
        ),
        ("room.MAX_COLUMNS", {"layers": 99, "settings": 2}, [1, 3, 4], "recipe.*many settings"),
    ],
)
def test_read_folders_keeps_its_limits(
    make_run,
    monkeypatch: pytest.MonkeyPatch,
    bound: str,
    value: object,
    rounds: list[int],
    said: str,
) -> None:
    folder = make_run("FedNNNN")
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    if bound != "runs.MAX_ROUNDS":
        lines[1] = "{}"
    if bound == "runs.MAX_DAMAGED":
        lines[3] = "{}"
    (folder / "metrics.jsonl").write_text("\n".join(lines))
    monkeypatch.setattr(f"fednnnn_plugin.report.{bound}", value)
    runs, problems = read_folders([folder])
    assert list(runs["round"]) == rounds
    assert any(re.search(said, problem) for problem in problems)


def test_names_like_numbers_stay_text(make_run) -> None:
    """Folders 01 and 1 became one data set; runs 1:30 and 2:30 without a recipe two seeds."""
    for seed, name in enumerate(("01", "1")):
        folder = make_run("FedNNNN", dataset="image_folder", data_dir=name, seed=seed)
    runs = arrange(fp.read_runs(folder.parent))
    assert set(runs["data"]) == {"01 (image_folder)", "1 (image_folder)"}
    for name in ("1:30", "2:30"):
        (make_run("FedNNNN", name=name) / "recipe.yaml").unlink()
    runs, _ = read_folders([folder.parent])
    assert {"1:30", "2:30"} < set(runs["method"])


def test_tables_read_apart_can_be_joined(make_run, tmp_path: Path) -> None:
    make_run("FedNNNN", name="a/same")
    make_run("PaperFedAvg", name="b/same")
    parts = [fp.read_runs(tmp_path / "runs" / name) for name in ("a", "b")]
    runs = arrange(pd.concat(parts, ignore_index=True).assign(label="mine"))
    assert set(runs["label"]) == {"FedAvg", "FedNNNN"}
    assert len(runs) == sum(map(len, parts))
    assert len(arrange(pd.concat([*parts, parts[0]]))) == len(runs)


def test_round_recorded_twice_counts_once(make_run) -> None:
    folder = make_run("FedNNNN")
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    again = json.loads(lines[1]) | {"test_acc": 0.25}
    (folder / "metrics.jsonl").write_text("\n".join([*lines, json.dumps(again)]))
    runs, problems = read_folders([folder])
    assert list(runs["round"]) == [1, 2, 3, 4]
    assert runs["test_acc"][1] == 0.25
    assert len(problems) == 1


def test_extended_run_is_not_finished(make_run) -> None:
    """``--resume`` with more rounds leaves the summary of the shorter run until it ends."""
    folder = make_run("FedNNNN", comm_round=8, done=6)
    (folder / "summary.json").write_text('{"rounds": 4}')
    assert not fp.read_runs(folder)["finished"].any()
    (folder / "summary.json").write_text('{"rounds": 6}')
    assert not fp.read_runs(folder)["finished"].any()


@pytest.mark.parametrize("text", ["- 1", "train_args: 3"])
def test_run_with_an_unusable_recipe_is_read(make_run, text: str) -> None:
    folder = make_run("FedNNNN")
    (folder / "recipe.yaml").write_text(text, encoding="latin-1")
    runs, problems = read_folders([folder])
    assert list(runs["method"].unique()) == [folder.name]
    assert all("recipe.yaml" in problem for problem in problems)
    assert problems or text == "train_args: 3"


def test_folders_without_runs_are_named(make_run, tmp_path: Path) -> None:
    good = make_run("FedNNNN", name="evil\x1b[31m")
    runs, problems = read_folders([tmp_path / "missing", tmp_path / "runs"])
    assert runs["run"].iloc[0].isprintable()
    (problem,) = problems
    assert "missing" in problem
    with pytest.raises(fp.UserError, match="missing"):
        fp.read_runs(tmp_path / "missing")
    (good / "metrics.jsonl").write_text("")
    with pytest.raises(fp.UserError, match="no round"):
        fp.read_runs(good)


def test_runs_with_the_same_name_are_both_kept(make_run, tmp_path: Path) -> None:
    make_run("FedNNNN", name="a/same")
    make_run("PaperFedAvg", name="b/same")
    runs, _ = read_folders([tmp_path / "runs/a", tmp_path / "runs/b"])
    assert runs["run"].nunique() == 2


@pytest.mark.slow
def test_report_and_models_import_only_what_they_need(make_run, tmp_path: Path) -> None:
    """A report needs no torch; a recipe and its model need neither fedml nor torchvision."""
    script = (
        "import sys; from pathlib import Path; import fednnnn_plugin as fp\n"
        "fp.figures.accuracy\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"  # pandas 2 takes it for LaTeX
        "from fednnnn_plugin.report.build import build_report\n"
        "build_report([Path(sys.argv[2])], Path(sys.argv[1]))\n"
        "assert not {'torch', 'fedml', 'optuna'} & set(sys.modules)\n"
        "from fednnnn_plugin.models import create_model\n"
        "from fednnnn_plugin.recipe import find_recipe, load_recipe\n"
        "create_model(load_recipe(find_recipe('digits_noniid_b_fednnnn')).model_args.model, 0)\n"
        "assert not {'fedml', 'torchvision'} & set(sys.modules)\n"
    )
    folder = make_run("FedNNNN", change=bare)
    subprocess.run([sys.executable, "-c", script, tmp_path / "out", folder], check=True)


@pytest.mark.parametrize(
    ("other", "apart"),
    [
        ({"model": {"code": "a", "drawn_weights": "other"}}, False),
        ({"model": {"code": "b", "drawn_weights": "w"}}, True),
        ({"model": {"code": "a", "weights": "w"}}, True),
        ({"model": {"code": "a", "drawn_weights": "w"}, "data": {"tensors": "t"}}, True),
        ({"model": {"code": "a", "drawn_weights": "w"}, "split": {"positions": "t"}}, True),
        ({"model": {"code": "a", "drawn_weights": "w"}, "rule": {"code": "t"}}, True),
        (None, True),  # of a version without them
    ],
)
def test_fingerprints_keep_runs_apart(make_run, other, apart: bool) -> None:
    folders = [make_run("PaperFedAvg", seed=seed) for seed in (0, 1)]
    of_both = {"model": {"code": "a", "drawn_weights": "w"}}, other
    for folder, fingerprint in zip(folders, of_both, strict=True):
        if fingerprint:
            (folder / "fingerprint.json").write_text(json.dumps(fingerprint))
    arranged = arrange(fp.read_runs(*folders))
    assert arranged.groupby(["data", "condition", "label"]).ngroups == 1 + apart


@pytest.mark.parametrize("text", ["{", "[1]", '{"model": 3}', "[" * 100_000])
def test_damaged_fingerprint_is_left_out_with_a_warning(make_run, text: str) -> None:
    folder = make_run("PaperFedAvg")
    (folder / "fingerprint.json").write_text(text)
    with pytest.warns(UserWarning, match=r"fingerprint\.json: not used: "):
        assert "model_fingerprint" not in fp.read_runs(folder)


def test_arguments_with_the_same_name_keep_their_sections(make_run) -> None:
    folder = make_run("PaperFedAvg")
    recipe = (folder / "recipe.yaml").read_text()
    recipe = recipe.replace("model_args:", "model_args:\n  width: 3\n  epochs: 9", 1)
    (folder / "recipe.yaml").write_text(recipe.replace("data_args:", "data_args:\n  width: 2", 1))
    first = fp.read_runs(folder).iloc[0]
    assert (first["model_args.width"], first["data_args.width"]) == (3, 2)
    assert (first["model_args.epochs"], first["epochs"]) != (9, 9)
