"""Keys that FedML itself reads: accepted in a recipe, and left to FedML.

Source: the configuration examples and the ``args.*`` reads of FedML 0.9.6.
"""

from pydantic import BaseModel, ConfigDict

from fednnnn_plugin.recipe.values import Anything, PathText


class Section(BaseModel):
    """One section of a recipe: unknown keys and loose types are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class FedMLCommonArgs(Section):
    """Scenario and platform version."""

    scenario: str | None = None
    config_version: str | None = None
    env_version: str | None = None
    mlops_api_key: str | None = None
    mlops_project_name: str | None = None
    mlops_run_name: str | None = None


class FedMLModelArgs(Section):
    """Files that FedML's own server fills."""

    model_file_cache_folder: PathText | None = None
    global_model_file_path: PathText | None = None


class FedMLTrainArgs(Section):
    """Cross-silo clients by id."""

    client_id_list: Anything = None


class FedMLValidationArgs(Section):
    """Tests on cross-silo clients."""

    test_on_clients: str | None = None


class FedMLCommArgs(Section):
    """Addresses and brokers of FedML's transports."""

    is_mobile: Anything = None
    grpc_ipconfig_path: PathText | None = None
    trpc_master_config_path: PathText | None = None
    mqtt_config_path: PathText | None = None
    s3_config_path: PathText | None = None
    customized_training_mqtt_config: Anything = None
    customized_training_s3_config: Anything = None
    customized_training_web3_config: Anything = None
    customized_training_thetastore_config: Anything = None
    enable_cuda_rpc: bool | None = None
    cuda_rpc_gpu_mapping: Anything = None


class FedMLTrackingArgs(Section):
    """Logs, profiling and the parts of Weights & Biases that FedML sets up.

    Its examples have ``using_mlops`` here; a recipe may too.
    """

    using_mlops: bool | None = None
    enable_tracking: bool | None = None
    log_file_dir: PathText | None = None
    log_file_path: PathText | None = None
    local_log_output_path: PathText | None = None
    sys_perf_profiling: bool | None = None
    skip_log_model_net: bool | None = None
    wandb_key: str | None = None
    wandb_name: str | None = None
    wandb_group_id: str | None = None
    wandb_only_server: bool | None = None


class EnvironmentArgs(Section):
    """The start-up script of a package for FedML's own platform."""

    bootstrap: PathText | None = None
