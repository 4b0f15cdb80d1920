"""The recipe: every key, its default and its range, in FedML's sections and under FedML's names."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field

from fednnnn_plugin.client.method import ClientMethod
from fednnnn_plugin.client.methods import METHODS
from fednnnn_plugin.files import user_path
from fednnnn_plugin.recipe import kinds
from fednnnn_plugin.server.rules import RULES, Key, Rule

#: Keys of FedML's own that its examples have, or its ``args.*`` reads: accepted, and left to it.
FEDMLS: dict[str, tuple[str, ...]] = {
    "common_args": (
        *("scenario", "config_version", "env_version"),
        *("mlops_api_key", "mlops_project_name", "mlops_run_name"),
    ),
    "model_args": ("model_file_cache_folder", "global_model_file_path"),
    "train_args": ("client_id_list",),
    "validation_args": ("test_on_clients",),
    "comm_args": (
        *("is_mobile", "grpc_ipconfig_path", "trpc_master_config_path"),
        *("mqtt_config_path", "s3_config_path", "enable_cuda_rpc", "cuda_rpc_gpu_mapping"),
        *("customized_training_mqtt_config", "customized_training_s3_config"),
        *("customized_training_web3_config", "customized_training_thetastore_config"),
    ),
    "tracking_args": (
        *("enable_tracking", "log_file_dir", "log_file_path", "local_log_output_path"),
        *("sys_perf_profiling", "skip_log_model_net"),
        *("wandb_key", "wandb_name", "wandb_group_id", "wandb_only_server"),
    ),
    "environment_args": ("bootstrap",),
}


#: The key of a section that may name a function of the user's, whose arguments stand beside it.
FUNCTIONS = {"data_args": "dataset", "model_args": "model"}


class Section(BaseModel):
    """One section of a recipe, strict in its types; keys beyond its own are FedML's."""

    model_config = {"extra": "allow", "frozen": True, "strict": True}

    @property
    def arguments(self) -> dict[str, Any]:
        """The keys beyond a section's own and FedML's: of the user's function that it names."""
        name = next(name for name, kind in SECTIONS.items() if kind is type(self))
        extra = self.model_extra or {}
        return {key: value for key, value in extra.items() if key not in FEDMLS.get(name, ())}


class CommonArgs(Section):
    """What kind of run, and its seed."""

    training_type: kinds.TrainingType = "simulation"
    random_seed: kinds.Seed = 0
    using_mlops: bool = False


class DataArgs(Section):
    """Data set and partition."""

    dataset: kinds.Dataset
    data_cache_dir: kinds.PathText = Field("~/fedml_data", validate_default=True)
    download: bool = False
    partition_method: kinds.PartitionMethod = "iid"
    partition_sizes: Literal["balanced", "power_law"] = "balanced"
    classes_per_client: kinds.Count = 2
    partition_alpha: kinds.Concentration = 0.5
    power_law_exponent: kinds.NonNegative = 1.0
    partition_by: kinds.Column | None = None
    min_samples: kinds.Count = 10
    validation_fraction: kinds.Fraction = 0.0
    data_dir: kinds.PathText | None = None
    image_size: kinds.ImageSize | None = None
    test_division: Literal["within_clients", "between_clients"] | None = None
    test_fraction: kinds.OpenFraction = 0.2

    @property
    def cache_dir(self) -> Path:
        """The data folder, with ``~`` expanded."""
        return user_path(self.data_cache_dir)


class ModelArgs(Section):
    """The model's name."""

    model: kinds.Model


class TrainArgs(Section):
    """The method and its hyperparameters: K, m, rounds, E, B, η, λ."""

    federated_optimizer: str
    client_method: str | None = None
    client_weighting: Literal["uniform", "samples"] = "uniform"
    client_sampling: kinds.ClientSampling | None = None
    client_availability: kinds.Availability | None = None
    client_num_in_total: kinds.Count
    client_num_per_round: kinds.Count
    comm_round: kinds.Count
    start_round: kinds.Natural = 0
    epochs: kinds.Epochs | None = None
    local_steps: kinds.Count | None = None
    batch_size: kinds.Count | kinds.FullBatch
    train_transform: kinds.Transform | None = None
    loss: kinds.LossName | None = None
    client_optimizer: kinds.ClientOptimizer = "sgd"
    client_optimizer_args: kinds.OptimizerArgs | None = None
    learning_rate: kinds.Rate
    learning_rate_decay: kinds.Decay | None = None
    learning_rate_schedule: kinds.RateSchedule | None = None
    max_grad_norm: kinds.Positive | None = None
    weight_decay: kinds.NonNegative = 0.0
    precision: Literal["fp32", "tf32", "bf16", "fp64"] = "fp32"
    client_batching: kinds.ClientBatching = "auto"
    client_threads: Literal["auto"] | kinds.Count = "auto"
    checkpoint_every: kinds.Count = 10
    max_client_norm: kinds.Positive | None = None
    max_client_failures: kinds.Natural = 0


class ValidationArgs(Section):
    """When the evaluation model is tested, by what, and whether the served one is too."""

    frequency_of_the_test: kinds.Count = 1
    test_served: bool = False
    metrics: kinds.Metrics | None = None
    stop: kinds.Stop | None = None
    per_client: kinds.PerClient | None = None
    holdout: kinds.OpenFraction | None = None
    per_class: bool | None = None


class DeviceArgs(Section):
    """CPU or GPU, and which GPU for which process."""

    using_gpu: bool = False
    device_type: Literal["cpu", "gpu"] | None = None
    gpu_id: kinds.Natural = 0
    gpu_mapping_file: kinds.PathText | None = None
    gpu_mapping_key: str | None = None
    gpu_util_parse: str | None = None
    worker_num: kinds.Count | None = None

    @property
    def wants_gpu(self) -> bool:
        """A GPU is asked for; FedML lets ``device_type`` overrule ``using_gpu``."""
        return self.using_gpu if self.device_type is None else self.device_type == "gpu"


class CommArgs(Section):
    """How the processes of a run reach each other."""

    backend: kinds.Backend = "sp"


class TrackingArgs(Section):
    """Weights & Biases, the run folder, and the files of a cross-silo server."""

    enable_wandb: bool = False
    wandb_project: str | None = None
    wandb_entity: str | None = None
    run_name: str | None = None
    label: kinds.Label | None = None
    overwrite: bool = False
    resume: bool = False
    server_state_path: kinds.PathText | None = None
    keep_states: kinds.Count = 3
    metrics_path: kinds.PathText | None = None
    prometheus_path: kinds.PathText | None = None
    save_path: kinds.PathText | None = None
    warn_norm_ratio: kinds.Positive = 10.0
    warn_alignment: kinds.Positive = 0.99
    warn_weight_share: kinds.Positive = 0.5


class Recipe(Section):
    """All settings of one run; ``name`` is the file's, without its suffix.

    Whoever loads it says, with ``allow_code``, whether what it names as ``module:name`` may run.
    ``rule_settings`` are the values of the keys of rule and client method, the defaults filled in,
    which a file has in ``train_args``.
    """

    name: str
    allow_code: bool
    common_args: CommonArgs
    data_args: DataArgs
    model_args: ModelArgs
    train_args: TrainArgs
    validation_args: ValidationArgs
    device_args: DeviceArgs
    comm_args: CommArgs
    tracking_args: TrackingArgs
    environment_args: Section
    rule_settings: dict[str, float]

    @property
    def rule(self) -> Rule:
        """The method's rule."""
        return RULES[self.train_args.federated_optimizer]

    @property
    def client_method(self) -> type[ClientMethod]:
        """What clients do: that of ``client_method``, or of the rule; else plain local SGD."""
        name = self.train_args.client_method or self.rule.client_method
        return METHODS[name] if name else ClientMethod

    @property
    def method_keys(self) -> dict[str, Key]:
        """The keys of the rule and of the client method."""
        return {**self.rule.keys, **self.client_method.keys}


SECTIONS: dict[str, type[Section]] = {
    name: field.annotation
    for name, field in Recipe.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, Section)
}


def own_keys(section: str) -> list[str]:
    """A section's keys but those of rules and FedML's own."""
    return [*SECTIONS[section].model_fields]


def fixed_keys(section: str) -> list[str]:
    """A section's keys but those of rules."""
    return [*own_keys(section), *FEDMLS.get(section, ())]
