"""Episodes in MLflow's own database, read back with MLflow's own client."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from ludus.errors import ConfigError
from ludus.trace.exporters import Finished, NoExporter, open_exporter
from ludus.trace.settings import TraceSettings
from ludus.types import Episode, Outcome, Span
from tests.trace.conftest import episode_of

READ = """
import json, sys
import mlflow
mlflow.set_tracking_uri(sys.argv[1])
client = mlflow.MlflowClient()
experiment = client.get_experiment_by_name(sys.argv[2])
traces = mlflow.search_traces(locations=[experiment.experiment_id], return_type="list", max_results=100)
runs = client.search_runs([experiment.experiment_id])
print(json.dumps({
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


def with_tools(seed: int) -> Episode:
    """An episode with a tool, a broken call, and a tool that failed."""
    base = episode_of(seed, num_turns=3, reward=0.5)
    turns = [
        turn.__class__(**{**fields_of(turn), "started_at": 100.0 + idx, "finished_at": 100.4 + idx})
        for idx, turn in enumerate(base.session.turns)
    ]
    turns[1] = turns[1].__class__(**{**fields_of(turns[1]), "undecoded": ("<tool_call>{",)})
    session = base.session.__class__(base.session.id, base.session.nodes, tuple(turns))
    spans = (
        Span("tool", "add", 100.5, 100.7, {"a": 1}, "3", turn_id=turns[0].id, metrics={"hits": 2.0}),
        Span("tool", "search", 101.5, 101.7, {"q": "x" * 100_000}, None, error="TimeoutError: too long"),
        Span("reward", "grade", 102.5, 102.6, None, 0.5),
        Span("plan", "think", 102.4, 102.45),
    )
    return Episode(
        **{**fields_of(base), "session": session, "spans": spans, "started_at": 99.9, "finished_at": 103.0}
        | {"metrics": {"success": 1.0}}
    )


def fields_of(record: Any) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__dataclass_fields__}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """What MLflow has after two runs: one good episode, one that failed, one of an evaluation."""
    uri = f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlruns.db"
    failed = Episode(
        **{**fields_of(episode_of(9, reward=None, kind="failed")), "outcome": Outcome("failed", "ValueError: no")}
    )
    held_out = Episode(**{**fields_of(episode_of(10)), "is_eval": True})
    settings = TraceSettings(backend="mlflow", tracking_uri=uri, project_name="math")
    with open_exporter(settings, "first") as exporter:
        exporter.add(Finished.of(with_tools(1), step=3))
        exporter.add(Finished.of(failed, step=3))
        exporter.add(Finished.of(held_out))
    yield read_back(uri, "math")


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
    assert held_out["spans"][-1]["outputs"]["reward"] == held_out["assessments"]["reward"] == 1.0
    assert trace_of(found, "ep-9")["assessments"] == {"success": 0.0}


def test_without_a_backend_nothing_happens() -> None:
    """`none` is the default, and takes what it is given."""
    with open_exporter(TraceSettings(), "run") as exporter:
        assert isinstance(exporter, NoExporter)
        exporter.add(Finished.of(episode_of(1)))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"backend": "weave"}, "mlflow"),
        ({"tracking_uri": "http://localhost:5000"}, "trace.backend is 'none'"),
        ({"backend": "mlflow", "tracking_uri": "mlruns.db"}, "sqlite:///relative.db"),
    ],
)
def test_settings_that_cannot_act(values: dict[str, Any], words: str) -> None:
    """They are errors that say what can."""
    with pytest.raises(ConfigError, match=words):
        TraceSettings(**values)


@pytest.mark.parametrize("uri", ["sqlite:////dev/null/mlruns.db", "http://127.0.0.1:9"])
def test_a_database_or_server_that_is_not_there(uri: str, caplog: pytest.LogCaptureFixture) -> None:
    """It costs a warning with the reason at the beginning, and one with the number of traces in the end."""
    with open_exporter(TraceSettings(backend="mlflow", tracking_uri=uri), "run") as exporter:
        exporter.add(Finished.of(episode_of(1)))
    first, last = (record.getMessage() for record in caplog.records if record.name.startswith("ludus.trace"))
    assert first.startswith("mlflow: traces cannot be written, and the run goes on without them: ")
    assert last.startswith("mlflow: 1 of 1 traces were not written (")
