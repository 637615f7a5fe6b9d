"""docs/coming-from-trl.md names every argument of TRL's own, and keys that exist."""

from __future__ import annotations

import re

import yaml

from ludus.config import Config
from ludus.settings import settings_keys
from tests.docs.pages import DOCS

PAGE = (DOCS / "coming-from-trl.md").read_text()
OF_TRL = """
beta cache_implementation cast_lm_head_to_fp32 chat_template_kwargs delta disable_dropout ds3_gather_for_generation
entropy_coef entropy_coef_delta entropy_coef_max entropy_coef_min entropy_target epsilon epsilon_high
generation_batch_size generation_kwargs importance_sampling_level learning_rate log_completions
log_completions_hub_repo log_multimodal log_unique_prompts loss_type mask_truncated_completions max_completion_length
max_tool_calling_iterations min_p model_init_kwargs multi_objective_aggregation num_completions_to_print
num_generations num_generations_eval num_iterations off_policy_mask_threshold pad_to_multiple_of
ref_model_mixup_alpha ref_model_sync_steps remove_unused_columns repetition_penalty reward_weights
router_aux_loss_coef sapo_temperature_neg sapo_temperature_pos scale_rewards shuffle_dataset steps_per_generation
sync_ref_model temperature top_entropy_quantile top_k top_p transformers_continuous_batching_config
trust_remote_code use_adaptive_entropy use_bias_correction_kl use_transformers_continuous_batching
use_transformers_paged use_vllm vespo_k_neg vespo_k_pos vespo_lambda_neg vespo_lambda_pos
vllm_enable_sleep_mode vllm_gpu_memory_utilization vllm_group_port vllm_importance_sampling_cap
vllm_importance_sampling_clip_max vllm_importance_sampling_clip_min vllm_importance_sampling_correction
vllm_importance_sampling_mode vllm_max_model_length vllm_mode vllm_model_impl vllm_server_base_url
vllm_server_host vllm_server_port vllm_server_timeout vllm_structured_outputs_regex vllm_tensor_parallel_size
"""
"""Fields that trl/trainer/grpo_config.py of TRL 1.16.0 gives `GRPOConfig`, beside those of transformers."""
ROWS = [tuple(re.split(r"(?<!\\)\|", line)[1:3]) for line in PAGE.splitlines() if line.startswith("| `")]


def test_every_argument_is_named_once() -> None:
    """In a first column: TRL's, those that it has only for what it was called before among them."""
    named = [name for theirs, _ in ROWS for name in re.findall(r"`(\w+)`", theirs) if name != "GRPOConfig"]
    assert sorted(named) == sorted(OF_TRL.split())


def test_every_key_is_one() -> None:
    """Those that the second columns name with their section."""
    known = {".".join(path) for path in settings_keys(Config)}
    sections = "algorithm|gconfig|eval_gconfig|trainer|train_dataset|rollout|model|engine"
    for _, ours in ROWS:
        for name in re.findall(rf"`((?:{sections})\.[\w.{{}},]+)", ours):
            head, _, inner = name.partition("{")
            for end in inner.rstrip("}").split(","):
                assert f"{head}{end}" in known, f"{head}{end}"


def test_the_run_of_the_page_loads() -> None:
    """What it shows is a configuration."""
    (shown,) = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    config = Config(**yaml.safe_load(shown))
    assert config.algorithm.correction.kind == "mask" and config.trainer.optimizer.lr == 1e-6
