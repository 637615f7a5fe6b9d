"""Where the names of `art` are: by its modules, which `ludus.compat.names` makes of this table."""

from ludus.compat.names import Modules, of

HERE = "ludus.compat.art"

MODULES: Modules = {
    "": of(f"{HERE}.backends", "Backend", "TrainConfig", "TrainResult", "TrainSFTConfig")
    | of(f"{HERE}.batching", "trajectory_group_batches")
    | of(
        f"{HERE}.capture",
        "auto_trajectory",
        "capture_auto_trajectory",
        "capture_yielded_trajectory",
        "yield_trajectory",
    )
    | of(f"{HERE}.choice", "Messages", "MessagesAndChoices", "Tools")
    | of(f"{HERE}.gathering", "gather_trajectories", "gather_trajectory_groups")
    | of(f"{HERE}.group", "TrajectoryGroup")
    | of(f"{HERE}.local_backend", "LocalBackend")
    | of(f"{HERE}.retrying", "retry")
    | of(f"{HERE}.server_backend", "ServerBackend")
    | of(f"{HERE}.trainable", "Model", "TrainableModel")
    | of(f"{HERE}.trajectory", "History", "Trajectory"),
    "dev": of("builtins", EngineArgs="dict", InitArgs="dict", PeftArgs="dict", TrainerArgs="dict")
    | of(f"{HERE}.keys", InternalModelConfig="internal_model_config"),
    "gather": of(f"{HERE}.gathering", "gather_trajectories", "gather_trajectory_groups"),
    "langgraph": of(f"{HERE}.langchain", "init_chat_model", "wrap_rollout"),
    "local": of(f"{HERE}.local_backend", "LocalBackend"),
    "mcp": of(f"{HERE}.generate", "generate_scenarios")
    | of(
        f"{HERE}.scenario",
        "GeneratedScenario",
        "GeneratedScenarioCollection",
        "MCPResource",
        "MCPTool",
        "complete_task_tool",
    ),
    "model": of(f"{HERE}.trainable", "Model", "TrainableModel"),
    "rewards": of(f"{HERE}.judge", "ruler_score_group")
    | of("ludus.rewards.chat.http", "Price")
    | of("ludus.rewards.judge.prompt", "DEFAULT_RUBRIC")
    | of("ludus.rewards.judge.ruler", "JudgeOptions", "ruler")
    | of("ludus.rewards.judge.scores", "TrajectoryScore"),
    "trajectories": of(f"{HERE}.group", "TrajectoryGroup") | of(f"{HERE}.trajectory", "History", "Trajectory"),
    "types": of(f"{HERE}.backends", "TrainConfig", "TrainResult", "TrainSFTConfig")
    | of(f"{HERE}.choice", "Messages", "MessagesAndChoices", "Tools"),
    "utils": of(f"{HERE}.concurrency", "limit_concurrency")
    | of(f"{HERE}.dataset", "DatasetBatch", "iterate_dataset")
    | of(f"{HERE}.retrying", "retry"),
    "utils.litellm": of(f"{HERE}.choice", "convert_litellm_choice_to_openai"),
    "utils.sft": of(f"{HERE}.schedule", "create_lr_schedule")
    | of(f"{HERE}.supervised", "SFTDatasetChunk", "create_sft_dataset_iterator", "iterate_file", "train_sft_from_file"),
}
