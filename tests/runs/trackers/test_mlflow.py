"""Episodes in MLflow's own database, read back with MLflow's own client."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.runs.conftest import episode_of
from tests.runs.trackers.conftest import tracked, with_tools

READ = """
import json, sys
import mlflow
mlflow.set_tracking_uri(sys.argv[1])
client = mlflow.MlflowClient()
experiment = client.get_experiment_by_name(sys.argv[2])
traces = mlflow.search_traces(locations=[experiment.experiment_id], return_type="list", max_results=100)
runs = client.search_runs([experiment.experiment_id])
print(json.dumps({
    "metrics": runs[0].data.metrics, "params": runs[0].data.params,
    "files": [each.path for each in client.list_artifacts(runs[0].info.run_id)],
    "runs": [[run.info.run_name, run.info.status, run.info.run_id] for run in runs],
    "traces": [{
        "info": trace.info.to_dict(),
        "assessments": {a.name: a.feedback.value for a in trace.info.assessments},
        "spans": [{"name": s.name, "type": s.span_type, "inputs": s.inputs, "outputs": s.outputs, "parent": s.parent_id,
                   "id": s.span_id, "status": s.status.status_code.value, "message": s.status.description,
                   "start": s.start_time_ns, "end": s.end_time_ns, "attributes": s.attributes,
                   "events": [[e.name, e.attributes] for e in s.events]} for s in trace.data.spans],
    } for trace in traces],
}, default=str))
"""


def read_back(uri: str, project: str) -> Any:
    """What MLflow's client finds, in a process of its own: its import changes much in a process."""
    result = subprocess.run([sys.executable, "-c", READ, uri, project], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def found(database: str) -> Any:
    return read_back(database, "math")


def trace_of(found: Any, episode: str) -> Any:
    [trace] = [trace for trace in found["traces"] if trace["info"]["tags"]["episode"] == episode]
    return trace


def test_every_episode_is_a_trace_of_the_run(found: Any) -> None:
    """They are linked to the run, and the run has ended."""
    [(name, status, run_id)] = found["runs"]
    assert (name, status) == ("first", "FINISHED")
    assert len(found["traces"]) == 3
    assert {trace["info"]["trace_metadata"]["mlflow.sourceRun"] for trace in found["traces"]} == {run_id}


def test_a_trace_names_its_step_sample_and_group(found: Any) -> None:
    """As tags, that can be searched for; the members of a group are one session of MLflow."""
    info = trace_of(found, "ep-1")["info"]
    tags = info["tags"]
    assert (tags["run"], tags["step"], tags["sample"], tags["group"]) == ("first", "3", "task-0", "group-0")
    assert (tags["split"], tags["outcome"], tags["reward"]) == ("train", "ok", "0.5")
    assert info["trace_metadata"]["mlflow.trace.session"] == "first/group-0"
    assert info["client_request_id"] == "ep-1"
    assert trace_of(found, "ep-10")["info"]["tags"]["split"] == "eval"
    assert "step" not in trace_of(found, "ep-10")["info"]["tags"]


def test_spans_of_run_generate_tool_and_reward(found: Any) -> None:
    """In the order of time, with their own times, below the run."""
    run, *children = trace_of(found, "ep-1")["spans"]
    assert (run["name"], run["type"], run["parent"], run["status"]) == ("run", "AGENT", None, "OK")
    assert [(span["name"], span["type"]) for span in children] == [
        ("generate", "CHAT_MODEL"),
        ("add", "TOOL"),
        ("generate", "CHAT_MODEL"),
        ("search", "TOOL"),
        ("generate", "CHAT_MODEL"),
        ("think", "TASK"),
        ("grade", "EVALUATOR"),
    ]
    assert {span["parent"] for span in children} == {run["id"]}
    assert all(run["start"] <= span["start"] <= span["end"] <= run["end"] for span in children)
    assert children[1]["end"] - children[1]["start"] == pytest.approx(0.2e9, abs=1e3)
    assert (children[1]["inputs"], children[1]["outputs"]) == ({"a": 1}, "3")


def test_an_answer_shows_what_the_model_was_asked_and_said(found: Any) -> None:
    """As a chat of OpenAI's protocol, with the tokens and the weights that sampled them."""
    episode = with_tools(1)
    turn = episode.session.turns[0]
    span = trace_of(found, "ep-1")["spans"][1]
    assert span["inputs"]["messages"][-1] == {"role": "user", "content": turn.messages[-1].content}
    assert span["outputs"]["choices"][0]["message"]["content"] == turn.reply.content
    assert span["attributes"]["ludus.token_ids"] == list(turn.sampled.token_ids)
    assert span["attributes"]["ludus.versions"] == [0]
    num_prompt = len(episode.session.path_ids(turn.node)) - len(turn.sampled.token_ids)
    assert span["attributes"]["mlflow.chat.tokenUsage"] == {
        "input_tokens": num_prompt,
        "output_tokens": len(turn.sampled.token_ids),
        "total_tokens": num_prompt + len(turn.sampled.token_ids),
    }


def test_a_call_that_could_not_be_read_is_an_event(found: Any) -> None:
    """Under the words that stand in the log."""
    span = trace_of(found, "ep-1")["spans"][3]
    assert span["events"] == [["Failed to decode tool call", {"text": "<tool_call>{"}]]


def test_failures_are_seen(found: Any) -> None:
    """A tool's and an episode's, with the reason."""
    tool = trace_of(found, "ep-1")["spans"][4]
    assert (tool["status"], tool["message"]) == ("ERROR", "TimeoutError: too long")
    assert "characters" in tool["inputs"]["q"] and len(tool["inputs"]["q"]) < 21_000
    failed = trace_of(found, "ep-9")
    assert (failed["info"]["state"], failed["spans"][0]["message"]) == ("ERROR", "ValueError: no")


def test_rewards_and_metrics_are_assessments(found: Any) -> None:
    """What MLflow shows as columns; an agent that computed its reward itself has a span of it too."""
    assert trace_of(found, "ep-1")["assessments"] == {"reward": 0.5, "success": 1.0}
    held_out = trace_of(found, "ep-10")
    assert held_out["spans"][-1]["name"] == "reward"
    assert held_out["spans"][-1]["outputs"]["reward"] == held_out["assessments"]["reward"] == 0.5
    assert trace_of(found, "ep-9")["assessments"] == {}


def test_metrics_and_the_summary_are_the_runs(found: Any) -> None:
    """With their steps, beside the configuration and the summary as a file; a name that MLflow refuses is changed."""
    metrics, params = found["metrics"], found["params"]
    assert metrics["rollout/accuracy_1"] == 0.5
    assert (metrics["rollout/reward"], metrics["summary/reward"]) == (0.25, 0.75)
    assert params["name"] == "first" and params["gconfig.n_samples"]
    assert "summary.json" in found["files"]


@pytest.mark.parametrize("uri", ["sqlite:////dev/null/mlruns.db", "http://127.0.0.1:9"])
def test_a_database_or_server_that_is_not_there(tmp_path: Path, uri: str, caplog: pytest.LogCaptureFixture) -> None:
    """It costs a warning with the reason at the beginning, and one with the number of traces in the end."""
    with tracked(tmp_path, "run", to="mlflow", mlflow={"tracking_uri": uri}) as run:
        run.add_episode(episode_of(1))
    first, last = (record.getMessage() for record in caplog.records if record.name.startswith("ludus.runs"))
    assert first.startswith("mlflow: it cannot be told, and the run goes on without it: ")
    assert "trackers.mlflow.tracking_uri" in first
    assert last.startswith("mlflow: it does not have all of the run (") and "1 episodes are missing" in last
