"""Where the names of `areal` are: by its modules, which `ludus.compat.names` makes of this table."""

from ludus.compat.names import Modules, of

HERE = "ludus.compat.areal"

_CONTEXT = of(f"{HERE}.context", "WorkflowContext", "get", "get_aiohttp_session", "get_httpx_client", "stat_scope")
MODULES: Modules = {
    "": of(f"{HERE}.generation", "GenerationHyperparameters", "ModelRequest", "ModelResponse")
    | of(f"{HERE}.openai_client", "ArealOpenAI")
    | of(f"{HERE}.rollout", "AgentWorkflow", "RolloutWorkflow")
    | of(f"{HERE}.script", "PPOTrainer")
    | of(f"{HERE}.verified", "MultiTurnWorkflow", "RLVRWorkflow")
    | of("ludus.rewards.wrapper", "AsyncRewardWrapper"),
    "api": of(f"{HERE}.generation", "GenerationHyperparameters", "ModelRequest", "ModelResponse")
    | of(f"{HERE}.rollout", "RolloutWorkflow", InferenceEngine="EpisodeEngine")
    | of("ludus.rewards.wrapper", "AsyncRewardWrapper"),
    "api.cli_args": of(f"{HERE}.generation", "GenerationHyperparameters")
    | of(f"{HERE}.script", "load_expr_config")
    | of("ludus.compat.config", GRPOConfig="Config", PPOConfig="Config"),
    "api.engine_api": of(f"{HERE}.rollout", InferenceEngine="EpisodeEngine"),
    "api.io_struct": of(f"{HERE}.generation", "ModelRequest", "ModelResponse"),
    "api.reward_api": of("ludus.rewards.wrapper", "AsyncRewardWrapper"),
    "api.workflow_api": of(f"{HERE}.rollout", "AgentWorkflow", "RolloutWorkflow"),
    "core.workflow_context": _CONTEXT,
    "experimental.openai": of(f"{HERE}.openai_client", "ArealOpenAI"),
    "experimental.openai.types": of(f"{HERE}.openai_client", InteractionWithTokenLogpReward="ExportedInteraction"),
    "infra.workflow_context": _CONTEXT,
    "reward": of(f"{HERE}.math_worker", "MathVerifyWorker", "get_math_verify_worker")
    | of(
        f"{HERE}.verifiers",
        "clevr_count_70k_reward_fn",
        "geometry3k_reward_fn",
        "get_custom_reward_fn",
        "gsm8k_reward_fn",
    ),
    "reward.clevr_count_70k": of(f"{HERE}.verifiers", "clevr_count_70k_reward_fn"),
    "reward.geometry3k": of(f"{HERE}.verifiers", "geometry3k_reward_fn"),
    "reward.gsm8k": of(f"{HERE}.verifiers", "gsm8k_reward_fn"),
    "trainer": of(f"{HERE}.script", "PPOTrainer"),
    "trainer.rl_trainer": of(f"{HERE}.script", "PPOTrainer"),
    "utils.data": of(f"{HERE}.padded", "concat_padded_tensors"),
    "utils.hf_utils": of("ludus.compat.tokenizer", "load_hf_tokenizer"),
    "utils.stats_tracker": of(f"{HERE}.stats_tracker", "get"),
    "workflow": of(f"{HERE}.verified", "MultiTurnWorkflow", "RLVRWorkflow"),
    "workflow.multi_turn": of(f"{HERE}.verified", "MultiTurnWorkflow"),
    "workflow.rlvr": of(f"{HERE}.verified", "RLVRWorkflow", "default_data_extract_prompt_fn"),
}
