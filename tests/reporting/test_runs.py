"""Run folders as a table."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

import fednnnn_plugin as fp
from fednnnn_plugin.reporting.conditions import arrange
from fednnnn_plugin.reporting.runs import layers, read_folders

from .conftest import bare


def metrics_lines(folder: Path, *changed: str, first: int = 0) -> None:
    """Replace lines of a run's records."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    lines[first : first + len(changed)] = changed
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")


def test_read_runs_has_a_row_per_round(make_run) -> None:
    how = {"seed": 7, "weight_decay": "5e-4", "image_size": [64, 48], "using": True, "beta": 0.7}
    folder = make_run("PaperFedAvg", **how)
    runs = fp.read_runs(folder)
    assert list(runs["round"]) == [1, 2, 3, 4]
    line = json.loads((folder / "metrics.jsonl").read_text().splitlines()[0])
    assert runs.iloc[0].to_dict().items() >= {
        **{"run": folder.name, "data": "digits", "condition": "non-IID, B", "method": "FedAvg"},
        **{"seed": 7, "weight_decay": 5e-4, "image_size": "64 × 48", "model": "nnnn_digits"},
        **{"finished": True, "device": "cpu (A, 2 cores)", "seconds.train": 1.0},
        **{"test_acc": line["test_acc"], "client_norm_median": line["client_norms"][1]},
        "layers.fc2.mean_update_norm": line["layers"]["fc2"]["mean_update_norm"],
    }.items()  # fmt: skip
    assert runs["served_test_acc"].isna().all()
    assert layers(runs) == ["conv1", "conv2", "fc1", "fc2"]
    norms = fp.layer_norms(runs).set_index(["layer", "round"])
    assert len(norms) == 4 * 4
    assert list(norms.loc["fc2", "mean_client_norm"]) == list(runs["layers.fc2.mean_client_norm"])
    assert fp.layer_norms(runs.drop(columns=list(runs.filter(like="layers.")))).empty
    assert "data_cache_dir" not in runs
    types = {"finished": "boolean", "degenerate": "boolean", "using": "boolean", "seed": "Int64"}
    types |= {"epochs": "Int64", "clients": "Int64", "rejected": "Int64", "beta": "float64"}
    assert {name: str(runs[name].dtype) for name in types} == types


@pytest.mark.filterwarnings("error::UserWarning")
def test_read_runs_finds_patterns_lists_and_nested_folders(make_run, tmp_path: Path, study) -> None:
    for seed, name in enumerate(("n-1", "n-2", "deep/er/still", "deep/n-1")):
        make_run("FedNNNN", name=name, seed=seed, change=bare)
    runs = tmp_path / "runs"
    (runs / "deep").rename(tmp_path / "disk")
    (runs / "deep").symlink_to(tmp_path / "disk")
    table = fp.read_runs([runs, study], str(runs / "n-*"))
    assert set(table["run"]) == {str(runs / "n-1"), str(runs / "deep/n-1"), "n-2", "still"}
    assert len(table) == 4 * 4


def test_setting_named_like_a_column_keeps_its_section(make_run) -> None:
    """As a key of a user's own rule may be: as what was measured, and as what we add."""
    settings = {"round": 7, "layers.fc1.mean_update_norm": 8.0, "clients": 0.5, "label": 0.5}
    folder = make_run("my_rules:Own", **settings)
    recipe = (folder / "recipe.yaml").read_text()
    recipe = recipe.replace("model_args:", "model_args:\n  width: 3\n  epochs: 9", 1)
    (folder / "recipe.yaml").write_text(recipe.replace("data_args:", "data_args:\n  width: 2", 1))
    runs = fp.read_runs(folder)
    assert set(runs["method"]) == set(arrange(runs)["label"]) == {"Own"}
    assert runs.columns.is_unique
    assert list(runs["round"]) == [1, 2, 3, 4]
    assert (runs["layers.fc1.mean_update_norm"] < 8.0).all()
    expected = {f"train_args.{name}": value for name, value in settings.items()}
    expected |= {"model_args.width": 3, "data_args.width": 2, "model_args.epochs": 9, "epochs": 5}
    assert expected.items() <= runs.iloc[0].to_dict().items()


LONG = {"why": "a" * 1000}


@pytest.mark.parametrize(
    ("one", "other", "shown"),
    [
        ({"b": 1, "a": {"c": 0.9}}, {"b": 1, "a": {"c": 0.5}}, '{"a":{"c":0.9},"b":1}'),
        ([1, 2, 3, 4, 5], [1, 2, 3, 4, 6], "[1,2,3,4,5]"),
        (LONG | {"x": 1}, LONG | {"x": 2}, None),
    ],
)
def test_mappings_and_lists_of_settings_differ(make_run, one, other, shown: str | None) -> None:
    folders = [make_run("FedNNNN", seed=n, own=own) for n, own in enumerate((one, other))]
    runs = arrange(fp.read_runs(*folders))
    assert runs["label"].nunique() == 2
    assert shown in (None, runs["own"].iloc[0])
    assert runs["own"].str.len().max() <= 100


def test_column_of_the_users_is_no_setting(make_run) -> None:
    for seed in range(3):
        folder = make_run("FedNNNN", seed=seed, change=bare)
    runs = fp.read_runs(folder.parent)
    runs = runs.assign(final=runs.groupby("run")["test_acc"].transform("last"), label="mine")
    ax = fp.figures.accuracy(pd.concat([runs, runs.iloc[:0]]))
    assert len(ax.lines) == len(ax.collections) == 1
    assert list(fp.summary(runs)["seeds"]) == [3]


def test_records_packed_with_gzip(make_run) -> None:
    folder = make_run("FedNNNN", comm_round=50)
    before = fp.read_runs(folder)
    plain, packed = folder / "metrics.jsonl", folder / "metrics.jsonl.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    plain.unlink()
    assert fp.read_runs(folder).equals(before)
    packed.write_bytes(packed.read_bytes()[:-400])  # cut: what is whole is kept
    with pytest.warns(UserWarning, match=r"metrics\.jsonl\.gz"):
        assert 0 < len(fp.read_runs(folder)) < 50


DAMAGED = (
    '{"round": 2, "client_norms": [1, 2]}',
    '{"round": 2, "test_acc": 1.5}',
    '{"round": 2, "mean_update_norm": -1}',
    '{"round": 2, "mean_update_norm": 1' + "0" * 400 + "}",
    '{"round": 2, "layers": {"fc2": {"mean_update_norm": [1]}}}',
    *('{"round": 0, "test_acc": 0.5}', '{"round": 2.5, "test_acc": 0.5}'),
    *('{"round": 2, "clients": 2.5}', '{"round": 2, "rejected": 1e99}'),
    *('{"round": 2, "degenerate": 0.5}', '{"round": 2, "seconds": {"train": 1e308}}'),
    *("{}", '{"round": 2, "test_acc', "[" * 100_000),
)


def test_damaged_lines_are_left_out_with_a_warning(make_run) -> None:
    folder = make_run("FedNNNN", comm_round=16)
    metrics_lines(folder, *DAMAGED, first=1)
    with pytest.warns(UserWarning, match=r"metrics\.jsonl: line 2: .* and 13 more") as said:
        assert list(fp.read_runs(folder)["round"]) == [1, 16]
    assert len(said) == 1


def test_missing_number_is_no_damage(make_run) -> None:
    own = {"client_norms": None, "test_metrics": {"test_acc": 85.3, "vast": 1e200, "no": None}}
    own |= {"test_loss": -0.5, "layers": {"": {"mean_update_norm": 1.0}}}  # of a bare parameter
    runs = fp.read_runs(make_run("FedNNNN", change=lambda line: line.update(own)))
    values = {"test_metrics.test_acc": 85.3, "test_loss": -0.5}
    assert (runs[list(values)] == pd.Series(values)).all(axis=None)
    assert runs[["client_norm_min", "test_metrics.vast", "test_metrics.no"]].isna().all(axis=None)
    assert layers(runs) == [""]
    assert "linear" in fp.figures.loss(runs).get_yscale()


def test_records_are_read_up_to_a_size(make_run, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_run("FedNNNN", comm_round=5)
    lines = (folder / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    monkeypatch.setattr("fednnnn_plugin.reporting.runs.MAX_BYTES", sum(map(len, lines[:3])) + 1)
    runs, problems = read_folders([folder])
    assert list(runs["round"]) == [1, 2, 3]
    assert ["larger than" in problem for problem in problems] == [True]


def test_tables_read_apart_can_be_joined(make_run, tmp_path: Path) -> None:
    make_run("FedNNNN", name="a/same")
    make_run("PaperFedAvg", name="b/same")
    parts = [fp.read_runs(tmp_path / "runs" / name) for name in ("a", "b")]
    runs = arrange(pd.concat(parts, ignore_index=True).assign(label="mine"))
    assert set(runs["label"]) == {"FedAvg", "FedNNNN"}
    assert runs["run"].nunique() == 2
    assert len(arrange(pd.concat([*parts, parts[0]]))) == len(runs) == sum(map(len, parts))


def test_round_recorded_twice_counts_once(make_run) -> None:
    folder = make_run("FedNNNN")
    metrics_lines(folder, '{"round": 2, "test_acc": 0.25}', first=4)
    runs, problems = read_folders([folder])
    assert list(runs["round"]) == [1, 2, 3, 4]
    assert (runs["test_acc"][1], len(problems)) == (0.25, 1)


def test_records_of_a_users_own_loop_are_read_without_a_word(make_run) -> None:
    """Those of ``NWDARecorder`` have no recipe; a run that has lost its own is told."""
    folder = make_run("FedNNNN")
    (folder / "recipe.yaml").unlink()
    assert len(read_folders([folder])[1]) == 1
    (folder / "summary.json").unlink()
    runs, problems = read_folders([folder])
    assert (set(runs["method"]), problems) == ({folder.name}, [])


@pytest.mark.parametrize("text", ["{", "[1]", '{"model": 3}', "train_args: 3"])
@pytest.mark.parametrize("file", ["recipe.yaml", "fingerprint.json"])
def test_run_with_a_damaged_file_is_read(make_run, file: str, text: str) -> None:
    folder = make_run("FedNNNN")
    (folder / file).write_text(text)
    runs, problems = read_folders([folder])
    assert set(runs["method"]) == {folder.name if file == "recipe.yaml" else "FedNNNN"}
    assert "model_fingerprint" not in runs
    assert [file in problem for problem in problems] in ([], [True])
    assert problems or file == "recipe.yaml" or ":" in text  # a mapping, of nothing that we know


def test_folders_without_runs_are_named(make_run, tmp_path: Path) -> None:
    good = make_run("FedNNNN", name="evil\x1b[31m")
    runs, problems = read_folders([tmp_path / "missing", tmp_path / "runs"])
    assert runs["run"].iloc[0].isprintable()
    assert ["missing" in problem for problem in problems] == [True]
    with pytest.raises(fp.UserError, match="missing"):
        fp.read_runs(tmp_path / "missing")
    (good / "metrics.jsonl").write_text("")
    with pytest.raises(fp.UserError, match="no round"):
        fp.read_runs(good)


@pytest.mark.slow
def test_report_imports_only_what_it_needs(make_run) -> None:
    """Neither torch nor pyplot, which pandas 2 takes for LaTeX; of a path that is not UTF-8."""
    script = (
        "import sys; import fednnnn_plugin as fp\n"
        "fp.figures.accuracy\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
        "from fednnnn_plugin.cli import main\n"
        "main(['report', sys.argv[1], '--out', sys.argv[1]], standalone_mode=False)\n"
        "assert not {'torch', 'fedml', 'optuna'} & set(sys.modules)\n"
    )
    folder = make_run("FedNNNN", name=os.fsdecode(b"run-\xe9"), change=bare)
    utf8 = os.environ | {"PYTHONIOENCODING": "utf-8"}
    subprocess.run([sys.executable, "-c", script, folder], check=True, env=utf8)
    assert "udce9" in (folder / "rounds.csv").read_text()


SHARED = ("trainer", "sampler", "loss", "optimizer", "schedule", "availability", "transform")
SHARED += ("tester",)
FUNCTIONS = (*SHARED, "rule", "client_method", "metrics", "of a later version")
ONE = {"model": {"code": "a", "drawn_weights": "w"}}


@pytest.mark.parametrize(
    ("other", "apart"),
    [
        ({"model": {"code": "a", "drawn_weights": "other"}}, False),
        ({"model": {"code": "b", "drawn_weights": "w"}}, True),
        ({"model": {"code": "a", "weights": "w"}}, True),
        *((ONE | {of: {"code": "t"}}, False) for of in ("versions", "device", "data_set")),
        *((ONE | {of: {"code": "t"}}, True) for of in ("data", "split", *FUNCTIONS)),
        (None, True),  # of a version without them
    ],
)
def test_fingerprints_keep_runs_apart(make_run, other, apart: bool) -> None:
    folders = [make_run("PaperFedAvg", seed=seed) for seed in (0, 1)]
    for folder, fingerprint in zip(folders, (ONE, other), strict=True):
        if fingerprint:
            (folder / "fingerprint.json").write_text(json.dumps(fingerprint))
    arranged = arrange(fp.read_runs(*folders))
    assert arranged.groupby(["data", "condition", "label"]).ngroups == 1 + apart


@pytest.mark.parametrize("of", ["model", *SHARED])
def test_code_that_one_method_alone_has_is_named(make_run, of: str) -> None:
    folders = [make_run(method) for method in ("PaperFedAvg", "FedNNNN")]
    (folders[1] / "fingerprint.json").write_text(json.dumps({of: {"code": "t"}}))
    average, nnnn = arrange(fp.read_runs(*folders))["label"].unique()
    assert average == f"FedAvg ({of} fingerprint –)"
    assert nnnn.startswith(f"FedNNNN ({of} fingerprint ")
