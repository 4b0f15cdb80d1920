"""The recipe: every key, its default and its range, in FedML's sections and under FedML's names."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    PlainValidator,
    ValidationInfo,
    field_validator,
    model_validator,
)

from fednnnn_plugin.recipe import platform
from fednnnn_plugin.recipe.method import check_settings, find_method
from fednnnn_plugin.recipe.values import (
    BatchSize,
    Caller,
    ClientBatching,
    ClientOptimizer,
    Count,
    Dataset,
    Fraction,
    GpuList,
    ImageSize,
    Model,
    Natural,
    NonNegative,
    OpenFraction,
    PartitionMethod,
    PathText,
    Positive,
    Seed,
    TrainingType,
    refused,
)

if TYPE_CHECKING:
    from fednnnn_plugin.server.rules import Rule


class CommonArgs(platform.FedMLCommonArgs):
    """What kind of run, and its seed."""

    training_type: TrainingType = "simulation"
    random_seed: Seed = 0
    using_mlops: bool = False


class DataArgs(platform.Section):
    """Data set and partition."""

    dataset: Dataset
    data_cache_dir: PathText = "~/fedml_data"
    download: bool = False
    partition_method: PartitionMethod = "iid"
    partition_sizes: Literal["balanced", "power_law"] = "balanced"
    classes_per_client: Count = 2
    partition_alpha: Positive = 0.5
    power_law_exponent: NonNegative = 1.0
    min_samples: Count = 10
    validation_fraction: Fraction = 0.0
    data_dir: PathText | None = None
    image_size: ImageSize | None = None
    test_fraction: OpenFraction = 0.2

    @property
    def cache_dir(self) -> Path:
        """The data folder, with ``~`` expanded."""
        return Path(self.data_cache_dir).expanduser()


class ModelArgs(platform.FedMLModelArgs):
    """The model's name."""

    model: Model


def _settings(given: dict[str, object], info: ValidationInfo) -> dict[str, float]:
    return check_settings(given, info.data.get("federated_optimizer"))


class TrainArgs(platform.FedMLTrainArgs):
    """The method and its hyperparameters: K, m, rounds, E, B, η, λ.

    ``rule_settings`` is no key: it holds the keys that the method's rule takes, such as β and γ.
    """

    federated_optimizer: str
    rule_settings: Annotated[dict[str, float], PlainValidator(_settings)]
    client_weighting: Literal["uniform", "samples"] = "uniform"
    client_num_in_total: Count
    client_num_per_round: Count
    comm_round: Count
    start_round: Natural = 0
    epochs: Count
    batch_size: BatchSize
    client_optimizer: ClientOptimizer = "sgd"
    learning_rate: Positive
    weight_decay: NonNegative = 0.0
    precision: Literal["fp32", "tf32", "bf16", "fp64"] = "fp32"
    client_batching: ClientBatching = "auto"
    client_threads: Literal["auto"] | Count = "auto"
    checkpoint_every: Count = 10
    max_client_norm: Positive | None = None
    max_client_failures: Natural = 0

    @model_validator(mode="before")
    @classmethod
    def _with_the_rules_keys_apart(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        common = {key: value for key, value in values.items() if key in own_keys("train_args")}
        others = {key: value for key, value in values.items() if key not in common}
        return {**common, "rule_settings": others}

    @field_validator("federated_optimizer")
    @classmethod
    def _known(cls, name: str, info: ValidationInfo[Caller]) -> str:
        rule = find_method(name, info.context)
        for section in SECTIONS:
            if taken := sorted(set(rule.keys).intersection(own_keys(section))):
                text = f"its key {taken[0]} is every recipe's, in {section}; call it otherwise"
                raise refused(text)
        return name


class ValidationArgs(platform.FedMLValidationArgs):
    """When the evaluation model is tested, and whether the served one is too."""

    frequency_of_the_test: Count = 1
    test_served: bool = False


class DeviceArgs(platform.Section):
    """CPU or GPU, and which GPU for which process."""

    using_gpu: bool = False
    device_type: Literal["cpu", "gpu", "mps"] | None = None
    gpu_id: Natural = 0
    gpu_mapping_file: PathText | None = None
    gpu_mapping_key: str | None = None
    gpu_util_parse: GpuList | None = None
    worker_num: Count | None = None

    @property
    def wants_gpu(self) -> bool:
        """A GPU is asked for; FedML lets ``device_type`` overrule ``using_gpu``."""
        return self.using_gpu if self.device_type is None else self.device_type == "gpu"


class CommArgs(platform.FedMLCommArgs):
    """How the processes of a run reach each other."""

    backend: str = "sp"


class TrackingArgs(platform.FedMLTrackingArgs):
    """Weights & Biases, the run folder, and the files of a cross-silo server."""

    enable_wandb: bool = False
    wandb_project: str | None = None
    wandb_entity: str | None = None
    run_name: str | None = None
    overwrite: bool = False
    resume: bool = False
    server_state_path: PathText | None = None
    save_path: PathText | None = None


class Recipe(BaseModel):
    """All settings of one run; ``name`` is the file's, without its suffix."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: str
    common_args: CommonArgs
    data_args: DataArgs
    model_args: ModelArgs
    train_args: TrainArgs
    validation_args: ValidationArgs
    device_args: DeviceArgs
    comm_args: CommArgs
    tracking_args: TrackingArgs
    environment_args: platform.EnvironmentArgs | None = None

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


SECTIONS: dict[str, type[platform.Section]] = {
    "common_args": CommonArgs,
    "data_args": DataArgs,
    "model_args": ModelArgs,
    "train_args": TrainArgs,
    "validation_args": ValidationArgs,
    "device_args": DeviceArgs,
    "comm_args": CommArgs,
    "tracking_args": TrackingArgs,
    "environment_args": platform.EnvironmentArgs,
}


def own_keys(section: str) -> list[str]:
    """A section's keys, without those of the rules."""
    return [key for key in SECTIONS[section].model_fields if key != "rule_settings"]
