"""As in `verl.utils.rollout_trace`."""

from ludus.compat.verl.tracing import rollout_trace_attr, rollout_trace_op

__all__ = ["rollout_trace_attr", "rollout_trace_op"]
