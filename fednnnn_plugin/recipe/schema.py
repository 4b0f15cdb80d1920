"""The recipe: every key, its default and its range, in FedML's sections and under FedML's names.

What is ``object`` is FedML's own: accepted, and left to it (its examples, and the ``args.*`` that
FedML 0.9.6 reads). The keys of the rules stand with the rules.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, PlainValidator, ValidationInfo, field_validator, model_validator

from fednnnn_plugin.recipe import kinds
from fednnnn_plugin.recipe.method import METHOD, find_method, rule_settings

if TYPE_CHECKING:
    from fednnnn_plugin.server.rules import Rule


class Section(BaseModel):
    """One section of a recipe: unknown keys and loose types are errors."""

    model_config = {"extra": "forbid", "frozen": True, "strict": True}


class CommonArgs(Section):
    """What kind of run, and its seed."""

    training_type: kinds.TrainingType = "simulation"
    random_seed: kinds.Seed = 0
    using_mlops: bool = False
    scenario: object = None
    config_version: object = None
    env_version: object = None
    mlops_api_key: object = None
    mlops_project_name: object = None
    mlops_run_name: object = None


class DataArgs(Section):
    """Data set and partition."""

    dataset: kinds.Dataset
    data_cache_dir: kinds.PathText = "~/fedml_data"
    download: bool = False
    partition_method: kinds.PartitionMethod = "iid"
    partition_sizes: Literal["balanced", "power_law"] = "balanced"
    classes_per_client: kinds.Count = 2
    partition_alpha: kinds.Positive = 0.5
    power_law_exponent: kinds.NonNegative = 1.0
    min_samples: kinds.Count = 10
    validation_fraction: kinds.Fraction = 0.0
    data_dir: kinds.PathText | None = None
    image_size: kinds.ImageSize | None = None
    test_fraction: kinds.OpenFraction = 0.2

    @property
    def cache_dir(self) -> Path:
        """The data folder, with ``~`` expanded."""
        return Path(self.data_cache_dir).expanduser()


class ModelArgs(Section):
    """The model's name."""

    model: kinds.Model
    model_file_cache_folder: object = None
    global_model_file_path: object = None


def _settings(given: dict[str, object], info: ValidationInfo) -> dict[str, float]:
    return rule_settings(given, info.data.get("federated_optimizer"))


class TrainArgs(Section):
    """The method and its hyperparameters: K, m, rounds, E, B, η, λ.

    ``rule_settings`` is no key: it holds the keys that the method's rule takes, such as β and γ.
    """

    federated_optimizer: str
    rule_settings: Annotated[dict[str, float], PlainValidator(_settings)]
    client_weighting: Literal["uniform", "samples"] = "uniform"
    client_num_in_total: kinds.Count
    client_num_per_round: kinds.Count
    comm_round: kinds.Count
    start_round: kinds.Natural = 0
    epochs: kinds.Count
    batch_size: kinds.Count | kinds.FullBatch
    client_optimizer: kinds.ClientOptimizer = "sgd"
    learning_rate: kinds.Positive
    weight_decay: kinds.NonNegative = 0.0
    precision: Literal["fp32", "tf32", "bf16", "fp64"] = "fp32"
    client_batching: kinds.ClientBatching = "auto"
    client_threads: Literal["auto"] | kinds.Count = "auto"
    checkpoint_every: kinds.Count = 10
    max_client_norm: kinds.Positive | None = None
    max_client_failures: kinds.Natural = 0
    client_id_list: object = None

    @model_validator(mode="before")
    @classmethod
    def _with_the_rules_keys_apart(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        own = {key: value for key, value in values.items() if key in own_keys("train_args")}
        others = {key: value for key, value in values.items() if key not in own}
        return {"federated_optimizer": None, **own, "rule_settings": others}

    @field_validator("federated_optimizer", mode="before")
    @classmethod
    def _known(cls, name: object, info: ValidationInfo[kinds.Caller]) -> object:
        rule = find_method(name, info.context)
        taken = [key for section in SECTIONS for key in own_keys(section) if key in rule.keys]
        if taken:
            text = f"{name}: its key {taken[0]} is every recipe's; call it otherwise"
            raise kinds.refused({METHOD: text})
        return name


class ValidationArgs(Section):
    """When the evaluation model is tested, and whether the served one is too."""

    frequency_of_the_test: kinds.Count = 1
    test_served: bool = False
    test_on_clients: object = None


class DeviceArgs(Section):
    """CPU or GPU, and which GPU for which process."""

    using_gpu: bool = False
    device_type: Literal["cpu", "gpu", "mps"] | None = None
    gpu_id: kinds.Natural = 0
    gpu_mapping_file: kinds.PathText | None = None
    gpu_mapping_key: str | None = None
    gpu_util_parse: kinds.GpuList | None = None
    worker_num: kinds.Count | None = None

    @property
    def wants_gpu(self) -> bool:
        """A GPU is asked for; FedML lets ``device_type`` overrule ``using_gpu``."""
        return self.using_gpu if self.device_type is None else self.device_type == "gpu"


class CommArgs(Section):
    """How the processes of a run reach each other."""

    backend: str = "sp"
    is_mobile: object = None
    grpc_ipconfig_path: object = None
    trpc_master_config_path: object = None
    mqtt_config_path: object = None
    s3_config_path: object = None
    customized_training_mqtt_config: object = None
    customized_training_s3_config: object = None
    customized_training_web3_config: object = None
    customized_training_thetastore_config: object = None
    enable_cuda_rpc: object = None
    cuda_rpc_gpu_mapping: object = None


class TrackingArgs(Section):
    """Weights & Biases, the run folder, and the files of a cross-silo server."""

    enable_wandb: bool = False
    wandb_project: str | None = None
    wandb_entity: str | None = None
    run_name: str | None = None
    overwrite: bool = False
    resume: bool = False
    server_state_path: kinds.PathText | None = None
    save_path: kinds.PathText | None = None
    using_mlops: bool | None = None  # where FedML's examples have it
    enable_tracking: object = None
    log_file_dir: object = None
    log_file_path: object = None
    local_log_output_path: object = None
    sys_perf_profiling: object = None
    skip_log_model_net: object = None
    wandb_key: object = None
    wandb_name: object = None
    wandb_group_id: object = None
    wandb_only_server: object = None


class EnvironmentArgs(Section):
    """The start-up script of a package for FedML's own platform."""

    bootstrap: object = None


class Recipe(Section):
    """All settings of one run; ``name`` is the file's, without its suffix."""

    name: str
    common_args: CommonArgs
    data_args: DataArgs
    model_args: ModelArgs
    train_args: TrainArgs
    validation_args: ValidationArgs
    device_args: DeviceArgs
    comm_args: CommArgs
    tracking_args: TrackingArgs
    environment_args: EnvironmentArgs

    @model_validator(mode="before")
    @classmethod
    def _with_mlops_where_fedml_has_it(cls, values: dict[str, Any]) -> dict[str, Any]:
        tracking, common = values.get("tracking_args"), values.get("common_args")
        if isinstance(tracking, dict) and isinstance(common, dict):
            asked = tracking.get("using_mlops")
            if isinstance(asked, bool):
                return {**values, "common_args": {"using_mlops": asked, **common}}
        return values

    @property
    def rule(self) -> Rule:
        """The method's rule."""
        from fednnnn_plugin.server.rules import find_rule

        return find_rule(self.train_args.federated_optimizer)

    @property
    def rule_settings(self) -> dict[str, float]:
        """The values of the rule's keys, the defaults filled in."""
        return dict(self.train_args.rule_settings)


SECTIONS: dict[str, type[Section]] = {
    "common_args": CommonArgs,
    "data_args": DataArgs,
    "model_args": ModelArgs,
    "train_args": TrainArgs,
    "validation_args": ValidationArgs,
    "device_args": DeviceArgs,
    "comm_args": CommArgs,
    "tracking_args": TrackingArgs,
    "environment_args": EnvironmentArgs,
}


def own_keys(section: str, *, fedmls: bool = True) -> list[str]:
    """A section's keys, without those of the rules; with FedML's own or without."""
    fields = SECTIONS[section].model_fields.items()
    own = [key for key, field in fields if fedmls or field.annotation is not object]
    return [key for key in own if key != "rule_settings"]
