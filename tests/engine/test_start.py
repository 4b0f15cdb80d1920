"""``fp.run``: the engine from Python, and the public names."""

from pathlib import Path

import numpy as np
import pytest

import fednnnn_plugin as fp

from .conftest import QUICK, quick_run

RECIPE = "digits_noniid_b_fednnnn"


class Noting(fp.Follower):
    """A follower of one's own."""

    def __init__(self) -> None:
        self.seen: list[object] = []
        self.begin = lambda folder, finished: self.seen.append((folder.name, finished))
        self.client_done = lambda *of_round: self.seen.append(of_round)
        self.round_done = lambda _: self.seen.append("round")
        self.end = lambda: self.seen.append("end")


def test_run_and_its_metrics(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    noting = Noting()
    run = quick_run(tmp_path / "run", using_mlops=True, followers=[noting])
    assert run.folder == tmp_path / "run"
    assert run.summary is not None
    assert not run.was_finished
    metrics = fp.read_runs(run.folder)
    assert metrics["round"].tolist() == [1, 2]
    assert metrics["test_acc"].iloc[-1] == run.summary.final_test_acc
    assert (metrics["layers.fc1.mean_update_norm"] > 0).all()
    rounds = [[(number, 1, 3), (number, 2, 3), (number, 3, 3), "round"] for number in (1, 2)]
    assert noting.seen == [("run", 0), *rounds[0], *rounds[1], "end"]
    shown = capsys.readouterr()
    assert shown.out.count("\n") == 2  # a line a round
    # FedML's service is for `fedml run` only.
    assert shown.err.startswith("warning: common_args.using_mlops: true: ")

    options = [f"{key}={str(value).lower()}" for key, value in QUICK.items()]
    options.append("using_mlops=true")
    again = fp.run(RECIPE, overrides=options, output=str(tmp_path / "run"), resume=True)
    assert again.was_finished
    assert again.summary == run.summary


def test_run_raises_the_user_s_mistakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for given, said in (
        ({"overrides": {"beta": -1}}, r"train_args\.beta"),
        ({"backend": "mpi"}, "backend: 'mpi': must be 'sp' or 'MPI'"),
        ({"output": "typo", "resume": True}, "resume"),
        *(
            ({"output": here, "overwrite": True}, "not the curr")
            for here in (".", tmp_path, "a/..")
        ),
    ):
        with pytest.raises(fp.UserError, match=said):
            fp.run(RECIPE, **given)
    assert not any(tmp_path.iterdir())


def test_overrides_may_be_python_objects(tmp_path: Path) -> None:
    given = {"random_seed": np.int64(3), "data_cache_dir": tmp_path / "😀", "comm_round": -1}
    image = {"data_dir": tmp_path, "image_size": np.array([8, 8]), "comm_round": -1}
    for overrides in (given, image, "comm_round=-1"):
        with pytest.raises(fp.UserError) as error:
            fp.run(RECIPE, overrides=overrides)
        assert str(error.value).startswith("overrides: train_args.comm_round: -1")
        assert "\n" not in str(error.value)


def test_public_names_are_listed_and_load_on_use() -> None:
    names = {"run", "Run", "read_runs", "figures", "rule", "partition", "register", "NormNorm"}
    names |= {"UpdateAccumulator", "NWDARecorder"}
    assert names | {"UserError", "RunError", "FedExP", "FedAdam", "FedYogi"} <= set(dir(fp))
    assert fp.FedNNNN.__name__ == "FedNNNN"
    with pytest.raises(AttributeError, match="NoSuchRule"):
        _ = fp.NoSuchRule
