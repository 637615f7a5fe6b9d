"""realhf's names for keys of the configuration that mean the same here."""

from __future__ import annotations

from ludus.compat.keys import Table, to

KEYS: Table = {
    "experiment_name": to("name"),
    "fileroot": to("run_root"),
    "actor.path": to("model.path"),
    "actor.optimizer.lr": to("trainer.optimizer.lr"),
    "dataset.path": to("train_dataset.path"),
    "dataset.train_bs_n_seqs": to("train_dataset.batch_size"),
    "max_head_offpolicyness": to("rollout.max_head_offpolicyness"),
    "max_concurrent_rollouts": to("rollout.max_concurrent_rollouts"),
    "exp_ctrl.total_train_epochs": to("total_train_epochs"),
    "exp_ctrl.benchmark_steps": to("total_train_steps"),
    "exp_ctrl.ckpt_freq_steps": to("checkpoint.every_steps"),
    "exp_ctrl.eval_freq_steps": to("eval.every_steps"),
}
