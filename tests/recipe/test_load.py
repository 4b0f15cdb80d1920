"""Loading one file: its values, its defaults, and a line for each mistake."""

import math
import os
import re
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import yaml

from fednnnn_plugin.assembly.from_recipe import located, run_folder, thresholds
from fednnnn_plugin.assembly.load_model import load_model
from fednnnn_plugin.data.federated import load_federated
from fednnnn_plugin.errors import UserError
from fednnnn_plugin.reading import read_yaml, write_yaml
from fednnnn_plugin.recipe import differences, dump_recipe, find_recipe, load_recipe
from fednnnn_plugin.recipe.data_spec import data_spec
from fednnnn_plugin.run_folder.server_state import file_to_write

MINIMAL = """\
common_args: {training_type: simulation}
data_args: {dataset: digits}
model_args: {model: nnnn_digits}
train_args: {federated_optimizer: FedNNNN, beta: 0.7, gamma: 0.8, client_num_in_total: 20,
    client_num_per_round: 10, comm_round: 3, epochs: 1, batch_size: 10, learning_rate: 0.05}
validation_args: {frequency_of_the_test: 1}
device_args: {using_gpu: false}
comm_args: {backend: sp}
tracking_args: {enable_wandb: false}
"""
SECTIONS = yaml.safe_load(MINIMAL)
NAME = "mnist_noniid_b_fednnnn"
NEARLY = (NAME[:-1], f"other/{NAME}.yaml", "recipes/mnist_nniid_b_fednnnn")


def test_paths_in_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python, unlike a shell, leaves the ``~`` alone."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "mine.yaml").write_text(MINIMAL)
    assert find_recipe("~/mine.yaml") == tmp_path / "mine.yaml"
    with pytest.raises(UserError, match=r"^~no\.body/mine\.yaml: "):
        find_recipe("~no.body/mine.yaml")
    with pytest.raises(UserError, match=r"^folder: ~no\.body/run/"):
        load_model("~no.body/run")
    monkeypatch.chdir(tmp_path)
    there = file_to_write("server_state_path", "~no.body/state", only_check=True)
    assert there == tmp_path / "~no.body/state"
    assert run_folder(load_recipe(Path("mine.yaml")), "~no.body/run") == tmp_path / "~no.body/run"


def test_recipe_name_gives_way_to_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for text in (NAME, f"recipes/{NAME}.yaml"):
        mine = tmp_path / text
        mine.mkdir(parents=True)  # as a run folder may be named
        assert load_recipe(find_recipe(text)).name == NAME
        mine.rmdir()
        mine.write_text("mine")
        assert find_recipe(text).resolve() == mine


@pytest.mark.parametrize("text", ["", "\0", "n" * 5000, "a\nb", *NEARLY])
def test_recipe_name_that_is_wrong_is_one_line(text: str) -> None:
    with pytest.raises(UserError) as refused:
        load_recipe(find_recipe(text))
    assert str(refused.value).isprintable()
    assert text not in NEARLY or NAME in str(refused.value).removeprefix(text)


@pytest.fixture
def recipe_file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(MINIMAL)
    return path


def refused(path: Path, *overrides: str) -> list[str]:
    """The lines of a refusal."""
    with pytest.raises(UserError) as caught:
        load_recipe(path, overrides)
    lines = str(caught.value).split("\n")
    assert all(line.isprintable() for line in lines)
    return lines


def test_numbers_may_be_written_5e_4(recipe_file: Path) -> None:
    text = MINIMAL.replace("learning_rate: 0.05", "learning_rate: 5e-4")
    recipe_file.write_text(text.replace("beta: 0.7", 'beta: "7E-1"'))
    recipe = load_recipe(recipe_file, ["train_args.weight_decay=1e-3", "train_args.gamma=.5"])
    assert (recipe.train_args.learning_rate, recipe.train_args.weight_decay) == (5e-4, 1e-3)
    assert recipe.rule_settings == {"beta": 0.7, "gamma": 0.5}
    read = read_yaml("[5e-4, -1E+3, .5e1, 1.e2, 5e, 0x1e5, '5e-4', 2024-01-01]")
    assert read == [5e-4, -1e3, 5.0, 100.0, "5e", 0x1E5, "5e-4", "2024-01-01"]
    for text in ("8e41", "-.5E3", "1:30", "010", "2024-01-01", "off"):  # as a commit's hash may be
        recipe_file.write_text(dump_recipe(load_recipe(recipe_file, [f"run_name='{text}'"])))
        assert load_recipe(recipe_file).tracking_args.run_name == text


def test_override_replaces_and_the_last_one_wins(recipe_file: Path) -> None:
    given = ["train_args.beta=0.9", "beta=1", "client_batching=off", "random_seed=3"]
    given += ["data_args.data_cache_dir=/tmp/a=b", "tracking_args.run_name=", "batch_size=-1"]
    given += ["checkpoint_every=4", "data_args.dataset=a.b:c", "bootstrap=start.sh"]
    recipe = load_recipe(recipe_file, given)
    train, data = recipe.train_args, recipe.data_args
    assert recipe.rule_settings["beta"] == 1.0
    assert (train.client_batching, train.batch_size, train.checkpoint_every) == ("off", -1, 4)
    assert (recipe.common_args.random_seed, recipe.tracking_args.run_name) == (3, None)
    assert (data.data_cache_dir, data.dataset) == ("/tmp/a=b", "a.b:c")
    assert "bootstrap: start.sh" in dump_recipe(recipe)
    named = load_recipe(recipe_file, ['label="a #2"', "data_cache_dir=/tmp/a#b", "run_name='#'"])
    assert (named.tracking_args.label, named.data_args.data_cache_dir) == ("a #2", "/tmp/a#b")
    hub = load_recipe(recipe_file, ["dataset=hf:a/b", "subset=c", "split=null", "label_column=y"])
    assert hub.data_args.arguments == {"subset": "c", "label_column": "y"}
    plain, resumed = load_recipe(recipe_file), load_recipe(recipe_file, ["resume=true"])
    assert (plain.name, resumed.tracking_args.resume) == ("mine", True)
    assert dump_recipe(plain) == dump_recipe(resumed)


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("train_args.epochs=1:30", "'1:30': "),
        ("train_args.beta=1e999", "inf: "),
        ("train_args.learning_rate=null", ""),
        ("train_args.client_num_per_round=21", "21: .*client_num_in_total"),
        ("train_args.lr=1", ".*train_args.learning_rate"),  # a name of other programs
        ("train_args.lr_decay=0.9", ".*train_args.learning_rate_decay"),
        ("train_args.warmup_rounds=5", ".*train_args.learning_rate_schedule"),
        ("train_args.bata=1", ".*train_args.beta"),
        ("train_args.comm_round=2.5", "2.5: "),
        ("train_args.batch_size=0", "0: "),
        ("train_args.precision=fp16", "'fp16': .*fp32, tf32, bf16, fp64"),
        ("train_args.client_batching=on", "true: "),
        ("train_args.max_client_norm=0", "0: "),
        ("train_args.start_round=2", "2: .*cross_silo"),
        ("validation_args.stop=20", "20: "),
        ("validation_args.stop={}", ".*target, .*patience"),
        ("validation_args.stop={patience: 0}", ".*patience: 0: "),
        ("validation_args.stop={goal: 1}", ".*'goal' .*target"),
        ("validation_args.stop={target: 1, min_delta: 1}", ".*min_delta: .*patience"),
        ("validation_args.stop={target: 1, metric: f1}", ".*metric: 'f1': "),
        ("train_args.epochs=null", ".*local_steps"),
        ("train_args.local_steps=5", "5: epochs "),
        ("common_args.random_seed=4294967296", "4294967296: "),
        ("common_args.training_type=cross_silo", "'cross_silo': .*simulation"),
        ("data_args.dataset=imagenet", "'imagenet': .*cifar10, .*digits"),
        ("data_args.data_dir=x", "'x': .*image_folder"),
        ("data_args.min_samples=5", "5: .*power_law"),
        ("data_args.partition_alpha=1e-4", "0.0001: "),
        ("data_args.image_size=[8]", "a list: "),
        ("data_args.data_cache_dir=~no.body/x", "'~no.body/x': "),
        ("model_args.model=resnet19", "'resnet19': .*nnnn_mnist, nnnn_cifar10, .*resnet18"),
        ("tracking_args.run_name=7", "7: "),
        ("data_args.beta=1", ".*train_args"),
        ("data_args.split=train", "unknown key"),  # this data set has none
        ("split.train=1", "not a section; it is a key of data_args"),
        (f"train_args.{'x' * 5000}=1", ""),
        ("train.beta=1", ".*train_args"),
        ("train_args.beta=\x1b[31m", ".*YAML"),
        ("tracking_args.label=FedNNNN #2", "#2: a comment in YAML: .*quotes"),
        ("tracking_args.label=#2", "#2: a comment in YAML: "),
        ("", ".*KEY=VALUE"),
    ],
)
def test_override_with_a_mistake_is_one_line(recipe_file: Path, override: str, told: str) -> None:
    [line] = refused(recipe_file, override)
    key = override.partition("=")[0][:100]
    assert re.match(rf"--set {re.escape(key)}[^:]*: {told}", line)
    assert len(line) < 800


def test_mistakes_have_a_line_each_up_to_twenty(recipe_file: Path) -> None:
    text = MINIMAL.replace("beta: 0.7", "beta: -1").replace("epochs: 1", "epochs: many")
    recipe_file.write_text(text.replace("comm_round: 3", "com_round: 3"))
    told = ("beta: -1: ", "com_round: unknown ", "comm_round: missing", "epochs: 'many': ")
    for line, of in zip(refused(recipe_file), told, strict=True):
        assert line.startswith(f"{recipe_file}: train_args.{of}")
    many = {f"unknown{i}": {} for i in range(400)}
    for sections, rest in ((SECTIONS | many, 380), (SECTIONS | {"data_args": many}, 381)):
        recipe_file.write_text(yaml.safe_dump(sections))
        lines = refused(recipe_file)
        assert (len(lines), lines[-1]) == (21, f"... and {rest} more")  # a missing dataset is one
    more = {name: dict(SECTIONS[name]) | {"of": 1} for name in SECTIONS}
    recipe_file.write_text(yaml.safe_dump(more | {"tracking": {}}))
    lines = refused(recipe_file, "lr=3")
    in_order = sorted(SECTIONS, key=lambda name: name in ("data_args", "model_args", "train_args"))
    unknown = [f"{recipe_file}: {name}.of: unknown key" for name in in_order]
    assert lines[0].startswith(f"{recipe_file}: tracking: unknown section")
    assert [line.partition(" key")[0] + " key" for line in lines[1:-1]] == unknown
    assert lines[-1].startswith("--set train_args.lr: unknown key")


def test_number_of_a_splits_clients_cannot_be_taken_away(recipe_file: Path) -> None:
    assert load_recipe(recipe_file, clients=7).train_args.client_num_in_total == 7
    with pytest.raises(UserError, match=r"client_num_in_total: missing"):
        load_recipe(recipe_file, ["client_num_in_total=null"], clients=7)


@pytest.mark.parametrize("section", ["train_args", "device_args"])
def test_section_missing_or_misshapen_is_named(recipe_file: Path, section: str) -> None:
    recipe_file.write_text(yaml.safe_dump({**SECTIONS, section: [1]}))
    [line] = refused(recipe_file)
    assert line.startswith(f"{recipe_file}: {section}: a list: ")
    recipe_file.write_text(yaml.safe_dump({k: v for k, v in SECTIONS.items() if k != section}))
    if section not in ("data_args", "model_args", "train_args"):  # has a default for each key
        assert load_recipe(recipe_file).common_args.random_seed == 0
        assert load_recipe(recipe_file, ["random_seed=3"]).common_args.random_seed == 3
    else:  # for which an override does not stand in
        [line] = refused(recipe_file, "train_args.comm_round=3", "data_args.download=true")
        assert line.startswith(f"{recipe_file}: {section}: missing")


def test_keys_that_need_another(recipe_file: Path) -> None:
    [line] = refused(recipe_file, "gpu_mapping_file=a.yaml")
    assert "device_args.gpu_mapping_key: missing" in line
    [line] = refused(recipe_file, "resume=true", "overwrite=true")
    assert line.startswith("--set tracking_args.overwrite: ")
    load_recipe(recipe_file, ["gpu_mapping_file=a.yaml", "gpu_mapping_key=two_gpus"])
    overrides = ["data_args.dataset=image_folder", "data_args.image_size=[24, 32]"]
    [line] = refused(recipe_file, *overrides)
    assert line.startswith(f"{recipe_file}: data_args.data_dir: missing; dataset image_folder need")
    recipe = load_recipe(recipe_file, [*overrides, "data_args.data_dir=~/flowers"])
    assert recipe.data_args.image_size == (24, 32)
    recipe_file.write_text(dump_recipe(recipe))
    assert differences(load_recipe(recipe_file), recipe) == {}


def test_arguments_may_have_the_names_of_other_sections_keys(recipe_file: Path) -> None:
    named = ["data_args.dataset=mine:load", "data_args.scenario=a", "data_args.resume=1"]
    named += ["model_args.model=mine:Net", "model_args.is_mobile=1"]
    named += ["model_args.global_model_file_path=m.pt"]  # FedML's, in this section
    recipe = load_recipe(recipe_file, named)
    assert recipe.data_args.arguments == {"scenario": "a", "resume": 1}
    assert "  resume: 1\n" in dump_recipe(recipe)  # those of tracking_args are not stored
    assert recipe.model_args.arguments == {"is_mobile": 1}


def test_recipe_without_its_method(recipe_file: Path) -> None:
    """Which a program gave as an object, or which is code that may not run."""
    for rule, client_method in (("<object>:Mine", "<object>:Yours"), ("mine:Mine", "mine:Yours")):
        named = f"'{rule}', client_method: '{client_method}', my_key"
        recipe_file.write_text(MINIMAL.replace("FedNNNN, beta", named))
        other = ["federated_optimizer=PaperFedAvg", "client_method=null"]
        recipe = load_recipe(recipe_file, other, foreign=True)
        assert (recipe.rule.name, recipe.train_args.client_method) == ("PaperFedAvg", None)
        assert recipe.train_args.comm_round == 3


def test_keys_that_overrule_each_other(recipe_file: Path) -> None:
    assert not load_recipe(recipe_file).common_args.using_mlops
    assert load_recipe(recipe_file, ["tracking_args.using_mlops=true"]).common_args.using_mlops
    recipe_file.write_text(MINIMAL.replace("enable_wandb: false", "using_mlops: true"))
    assert load_recipe(recipe_file).common_args.using_mlops
    assert not load_recipe(recipe_file, ["common_args.using_mlops=false"]).common_args.using_mlops
    for more, wanted in ([], True), (["device_type=cpu"], False):
        assert load_recipe(recipe_file, ["using_gpu=true", *more]).device_args.wants_gpu is wanted


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"# nothing\n", ""),
        (b"beta: 1\n", "beta: .*train_args"),
        (b"allow_code: true\n", "allow_code: unknown"),
        (b'"\\xad\\n\\e[2J": x\n', r"\\xad\\n\\x1b\[2J: "),
        (b"a: 1\x00", "line 1: .*YAML"),
        (b"\x89PNG\r\n\x1a\n\x00\xff", ".*UTF-8"),
        (b"a: 1\na: 2\n", "line 2: a .*twice"),
        (b"a: &x [1]\nb: *x\n", "line 2: aliases"),
        (b"a: !!python/name:os.system\n", "line 1: .* tag:yaml.org,2002:python/name:os.system "),
        (b"a: " + b"9" * 5000, "line 1: .*100 digits"),
        (b"[" * 700, ".*deep"),
        (b"#" * (300 << 10), ".*262144 bytes"),
        (b"? [1]\n: 2\n", "line 1: .*key"),
    ],
)
def test_file_that_is_no_recipe_is_refused(recipe_file: Path, content: bytes, told: str) -> None:
    recipe_file.write_bytes(content)
    lines = refused(recipe_file)
    assert all(line.startswith(f"{recipe_file}: ") for line in lines)
    assert re.match(told, lines[0].removeprefix(f"{recipe_file}: "))


def test_path_that_is_no_file_is_refused(tmp_path: Path) -> None:
    pipe, loop, hostile = (tmp_path / name for name in ("pipe", "loop", "a\nb\x1b[2J.yaml"))
    os.mkfifo(pipe)
    loop.symlink_to(loop)
    hostile.touch()
    os.truncate(hostile, 1 << 40)
    for path in (tmp_path, Path("/dev/null"), pipe, loop, hostile, tmp_path / ("n" * 300)):
        [line] = refused(path)
        assert line.startswith(str(path.parent))


def test_dump_holds_values_and_no_access_key(recipe_file: Path) -> None:
    odd = 'tracking_args.run_name="β\\N\\u2028: \'#"'
    given = ["client_batching=off", "beta=5e-4", "wandb_key=s3cret", "mlops_api_key=s3cret", odd]
    given += ["customized_training_mqtt_config={MQTT_PWD: s3cret}", "client_id_list=.nan"]
    recipe = load_recipe(recipe_file, [*given, f"data_cache_dir=/{'a long name ' * 9}"])
    assert recipe.tracking_args.run_name == "β\x85\u2028: '#"
    text = dump_recipe(recipe)
    assert "s3cret" not in text
    assert "beta: 0.0005" in text
    assert all(re.match(r"\w+:|  \w+: ", line) for line in text.splitlines())  # a line a key
    assert "of: 0.5\n" in write_yaml({"of": np.float64(0.5)})
    copy = recipe_file.with_name("copy.yaml")
    copy.write_text(text)
    assert differences(load_recipe(copy), recipe) == {}
    changed = {"train_args.beta": (5e-4, 0.9), "train_args.comm_round": (3, 5)}
    given = load_recipe(copy, ["comm_round=5", "beta=0.9"])
    assert differences(recipe, given) == changed


def test_user_without_a_home_has_data_in_the_working_directory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in a container, under a number that no user has."""
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", Mock(side_effect=KeyError))
    recipe = load_recipe(find_recipe("mnist_iid_b_fednnnn"))
    assert recipe.data_args.cache_dir == Path.cwd() / "fedml_data"


def test_keys_reach_what_they_are_of() -> None:
    keys = ["per_client=true", "holdout=0.5", "partition_method=iid", "partition_sizes=power_law"]
    keys += ["power_law_exponent=1.5", "min_samples=20"]
    keys += ["warn_norm_ratio=3", "warn_alignment=0.5", "warn_weight_share=0.9"]
    recipe = load_recipe(find_recipe("digits_noniid_b_fedavg"), keys)
    data = load_federated(data_spec(recipe))
    parts = zip(data.client_holdouts, data.client_indices, strict=True)
    pairs = [(len(out), len(out) + len(own)) for out, own in parts]
    assert all(out == round(n / 2) for out, n in pairs)
    assert min(n for _, n in pairs) == 20
    assert thresholds(recipe) == (3, 0.5, 0.9)
    clipping = load_recipe(find_recipe("digits_noniid_b_fedavg"), ["max_client_norm=1"])
    assert thresholds(clipping).norm_ratio == math.inf


def test_relative_paths_are_those_of_where_a_run_began() -> None:
    keys = ["dataset=image_folder", "data_dir=images", "data_cache_dir=~/c"]
    keys += ["gpu_mapping_file=m.yaml", "gpu_mapping_key=k", "client_availability=a.csv"]
    recipe = load_recipe(find_recipe("digits_noniid_b_fedavg"), keys)
    placed = located(recipe, Path("/here"))
    data = placed.data_args
    assert (data.data_dir, data.data_cache_dir) == ("/here/images", "~/c")
    assert placed.device_args.gpu_mapping_file == "/here/m.yaml"
    assert placed.train_args.client_availability == "/here/a.csv"
