"""Where the names of `realhf` are: by its modules, which `ludus.compat.names` makes of this table."""

from ludus.compat.names import Modules, of

HERE = "ludus.compat.realhf"

MODULES: Modules = {
    "": of("ludus.agents.environments.base", "EnvironmentService")
    | of(f"{HERE}.environments", "NullEnvironment", "make_env", "register_environment")
    | of("ludus.agents.environments.gym", "GymEnvironment")
    | of("ludus.agents.environments.reasoning", "ReasoningGymEnvironment", "reasoning_gym_rows")
    | of(f"{HERE}.abstraction", "AgentAbstraction", "EnvServiceAbstraction")
    | of(f"{HERE}.agent", "Agent", "make_agent", "register_agent")
    | of(f"{HERE}.generation", "BundledGenerationOutputs", "GenerationHyperparameters")
    | of(f"{HERE}.math_agents", "MathMultiTurnAgent", "MathSingleStepAgent")
    | of(f"{HERE}.math_code", "MathCodeSingleStepEnv", "load_metadata")
    | of(
        f"{HERE}.math_experiment",
        "AsyncPPOMATHConfig",
        "AsyncPPOMATHMultiTurnConfig",
        "AsyncRLExperimentConfig",
        "PPOHyperparameters",
        "PPOMATHConfig",
    )
    | of(f"{HERE}.null_agent", "NullAgent")
    | of(f"{HERE}.sample", "MicroBatchSpec", "SequenceSample", "SequenceSplitSpec")
    | of(f"{HERE}.text_agent", "TextEnvironmentAgent")
    | of(f"{HERE}.trajectory", "TrajectoryBuilder")
    | of("ludus.compat.tokenizer", "load_hf_tokenizer")
    | of("ludus.rewards.answers", "math_verify_call")
    | of("ludus.rewards.programs", "code_verify_call", "extract_code"),
    "api.cli_args": of(f"{HERE}.generation", "GenerationHyperparameters")
    | of(f"{HERE}.math_experiment", "PPOHyperparameters")
    | of(f"{HERE}.sample", "MicroBatchSpec"),
    "api.core.agent": of(f"{HERE}.agent", "ALL_AGENTS", "Agent", "make_agent", "register_agent"),
    "api.core.agent_api": of(
        f"{HERE}.agent", "ALL_AGENTS", "Agent", "make_agent", "register_agent", ALL_AGNETS="ALL_AGENTS"
    ),
    "api.core.config": of(f"{HERE}.abstraction", "AgentAbstraction", "EnvServiceAbstraction"),
    "api.core.data_api": of(f"{HERE}.prompts", "RL_TASKS")
    | of(f"{HERE}.sample", "MicroBatchSpec", "SequenceSample", "SequenceSplitSpec")
    | of("ludus.compat.tokenizer", "load_hf_tokenizer"),
    "api.core.env_api": of("ludus.agents.environments.base", "EnvironmentService")
    | of(f"{HERE}.environments", "ALL_ENV_CLASSES", "make_env", "register_environment"),
    "api.core.model_api": of(
        f"{HERE}.generation", "APIGenerateOutput", "BundledGenerationOutputs", "GenerationHyperparameters"
    ),
    "experiments.async_exp.async_math_ppo": of(
        f"{HERE}.math_experiment", "AsyncPPOMATHConfig", "AsyncRLExperimentConfig", "PPOMATHConfig"
    ),
    "experiments.async_exp.async_ppo_math_exp": of(f"{HERE}.math_experiment", "AsyncPPOMATHConfig"),
    "experiments.async_exp.async_ppo_multi_turn_math_exp": of(f"{HERE}.math_experiment", "AsyncPPOMATHMultiTurnConfig"),
    "experiments.async_exp.async_rl_exp": of(f"{HERE}.math_experiment", "AsyncRLExperimentConfig"),
    "experiments.common.ppo_math_exp": of(f"{HERE}.math_experiment", "PPOMATHConfig"),
    "impl.agent": of(f"{HERE}.math_agents", "MathMultiTurnAgent", "MathSingleStepAgent")
    | of(f"{HERE}.null_agent", "NullAgent"),
    "impl.agent.math_multi_turn_agent": of(f"{HERE}.math_agents", "MathMultiTurnAgent"),
    "impl.agent.math_single_step_agent": of(f"{HERE}.math_agents", "MathSingleStepAgent"),
    "impl.agent.null_agent": of(f"{HERE}.null_agent", "NullAgent"),
    "impl.dataset.math_code_dataset": of(f"{HERE}.math_code", "load_metadata"),
    "impl.environment": of(f"{HERE}.environments", "NullEnvironment")
    | of(f"{HERE}.math_code", "MathCodeSingleStepEnv"),
    "impl.environment.math_code_single_step_env": of(f"{HERE}.math_code", "MathCodeSingleStepEnv")
    | of("ludus.rewards.answers", "math_verify_call")
    | of("ludus.rewards.programs", "code_verify_call", "extract_code"),
}
