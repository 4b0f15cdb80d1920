"""Keys that FedML itself reads: accepted in a recipe, and left to FedML.

Source: the configuration examples and the ``args.*`` reads of FedML 0.9.6.
"""

from pydantic import BaseModel, ConfigDict

from fednnnn_plugin.recipe.values import Anything, OptFlag, OptPathText, OptText


class Section(BaseModel):
    """One section of a recipe: unknown keys and loose types are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class FedMLCommonArgs(Section):
    """Scenario and platform version."""

    scenario: OptText = None
    config_version: OptText = None
    env_version: OptText = None
    mlops_api_key: OptText = None
    mlops_project_name: OptText = None
    mlops_run_name: OptText = None


class FedMLModelArgs(Section):
    """Files that FedML's own server fills."""

    model_file_cache_folder: OptPathText = None
    global_model_file_path: OptPathText = None


class FedMLTrainArgs(Section):
    """Cross-silo clients by id."""

    client_id_list: Anything = None


class FedMLValidationArgs(Section):
    """Tests on cross-silo clients."""

    test_on_clients: OptText = None


class FedMLCommArgs(Section):
    """Addresses and brokers of FedML's transports."""

    is_mobile: Anything = None
    grpc_ipconfig_path: OptPathText = None
    trpc_master_config_path: OptPathText = None
    mqtt_config_path: OptPathText = None
    s3_config_path: OptPathText = None
    customized_training_mqtt_config: Anything = None
    customized_training_s3_config: Anything = None
    customized_training_web3_config: Anything = None
    customized_training_thetastore_config: Anything = None
    enable_cuda_rpc: OptFlag = None
    cuda_rpc_gpu_mapping: Anything = None


class FedMLTrackingArgs(Section):
    """Logs, profiling and the parts of Weights & Biases that FedML sets up."""

    enable_tracking: OptFlag = None
    log_file_dir: OptPathText = None
    log_file_path: OptPathText = None
    local_log_output_path: OptPathText = None
    sys_perf_profiling: OptFlag = None
    skip_log_model_net: OptFlag = None
    wandb_key: OptText = None
    wandb_name: OptText = None
    wandb_group_id: OptText = None
    wandb_only_server: OptFlag = None


class EnvironmentArgs(Section):
    """The start-up script of a package for FedML's own platform."""

    bootstrap: OptPathText = None
