"""The recipe: every key, its default and its range, in FedML's sections and under FedML's names."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, model_validator
from pydantic_core import PydanticCustomError

from fednnnn_plugin.recipe import consistency, platform
from fednnnn_plugin.recipe.values import (
    FOREIGN,
    ClientBatching,
    ClientOptimizer,
    ClientWeighting,
    Count,
    Dataset,
    Flag,
    Fraction,
    Model,
    Natural,
    NonNegative,
    OpenFraction,
    OptCount,
    OptDecay,
    OptDeviceType,
    OptGpuList,
    OptImageSize,
    OptNonNegative,
    OptPathText,
    OptPositive,
    OptText,
    PartitionMethod,
    PartitionSizes,
    PathText,
    Positive,
    Precision,
    Seed,
    Text,
    TrainingType,
)

Method = Literal[
    "FedNNNN",
    "NormNorm",
    "Momentum",
    "PaperFedAvg",
    "PaperFedProx",
    "FedExP",
    "FedAdam",
    "FedYogi",
]


class CommonArgs(platform.FedMLCommonArgs):
    """What kind of run, and its seed."""

    training_type: TrainingType = "simulation"
    random_seed: Seed = 0
    using_mlops: Flag = False


class DataArgs(platform.Section):
    """Data set and partition."""

    dataset: Dataset
    data_cache_dir: PathText = "~/fedml_data"
    download: Flag = False
    partition_method: PartitionMethod = "iid"
    partition_sizes: PartitionSizes = "balanced"
    classes_per_client: Count = 2
    power_law_exponent: NonNegative = 1.0
    min_samples: Count = 10
    validation_fraction: Fraction = 0.0
    data_dir: OptPathText = None
    image_size: OptImageSize = None
    test_fraction: OpenFraction = 0.2

    @property
    def cache_dir(self) -> Path:
        """The data folder, with ``~`` expanded."""
        return Path(self.data_cache_dir).expanduser()


class ModelArgs(platform.FedMLModelArgs):
    """The model's name."""

    model: Model


class TrainArgs(platform.FedMLTrainArgs):
    """The method and its hyperparameters: K, m, rounds, E, B, η, λ, and β, γ or μ.

    What begins with ``server_`` or ``fedexp_`` is the comparators'.
    """

    federated_optimizer: Annotated[
        Method,
        Field(description=f"one of {', '.join(consistency.METHODS)}"),
    ]
    beta: OptPositive = None
    gamma: OptDecay = None
    prox_mu: OptNonNegative = None
    server_lr: OptPositive = None
    server_beta1: OptDecay = None
    server_beta2: OptDecay = None
    server_tau: OptPositive = None
    fedexp_epsilon: OptPositive = None
    client_weighting: ClientWeighting = "uniform"
    client_num_in_total: Count
    client_num_per_round: Count
    comm_round: Count
    start_round: Natural = 0
    epochs: Count
    batch_size: Count
    client_optimizer: ClientOptimizer = "sgd"
    learning_rate: Positive
    weight_decay: NonNegative = 0.0
    precision: Precision = "fp32"
    client_batching: ClientBatching = "auto"
    checkpoint_every: Count = 10
    max_client_norm: OptPositive = None
    max_client_failures: Natural = 0

    @model_validator(mode="before")
    @classmethod
    def _with_the_methods_defaults(cls, values: object) -> object:
        if not isinstance(values, dict):
            return values
        method = values.get("federated_optimizer")
        used = consistency.COEFFICIENTS.get(method, ()) if isinstance(method, str) else ()
        defaults = {key: consistency.DEFAULTS[key] for key in used if key in consistency.DEFAULTS}
        return values | {k: v for k, v in defaults.items() if values.get(k) is None}


class ValidationArgs(platform.FedMLValidationArgs):
    """When the evaluation model is tested, and whether the served one is too."""

    frequency_of_the_test: Count = 1
    test_served: Flag = False


class DeviceArgs(platform.Section):
    """CPU or GPU, and which GPU for which process."""

    using_gpu: Flag = False
    device_type: OptDeviceType = None
    gpu_id: Natural = 0
    gpu_mapping_file: OptPathText = None
    gpu_mapping_key: OptText = None
    gpu_util_parse: OptGpuList = None
    worker_num: OptCount = None

    @property
    def wants_gpu(self) -> bool:
        """A GPU is asked for; FedML lets ``device_type`` overrule ``using_gpu``."""
        return self.using_gpu if self.device_type is None else self.device_type == "gpu"


class CommArgs(platform.FedMLCommArgs):
    """How the processes of a run reach each other."""

    backend: Text = "sp"


class TrackingArgs(platform.FedMLTrackingArgs):
    """Weights & Biases, and the files of a cross-silo server."""

    enable_wandb: Flag = False
    wandb_project: OptText = None
    wandb_entity: OptText = None
    run_name: OptText = None
    server_state_path: OptPathText = None
    save_path: OptPathText = None


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

    @model_validator(mode="after")
    def _consistent(self, info: ValidationInfo) -> Self:
        foreign = bool((info.context or {}).get(FOREIGN))
        problems = consistency.problems(self, foreign=foreign)
        if problems:
            raise PydanticCustomError("consistency", "inconsistent", {"problems": problems})
        return self


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
