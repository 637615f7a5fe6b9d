"""What a server must not forget: jobs, keys, events, across processes that are killed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ludus.cluster.serve.store import JobStore
from ludus.cluster.serve.wire import ErrorView, RegisterModel, SubmitJob
from ludus.errors import AgentError, UserError
from ludus.http.keys import digest

MODEL = RegisterModel(project="mail", name="agent-001", base_model="smollm2-135m")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[JobStore]:
    with JobStore(tmp_path) as one:
        one.register(MODEL)
        yield one


def submitted(store: JobStore, key: str | None = None, **arguments: object) -> str:
    return store.submit("mail", "agent-001", SubmitJob(kind="train", arguments=arguments), idempotency_key=key)[0].id


def test_a_job_goes_through_its_states(store: JobStore) -> None:
    """Queued, running, succeeded: each with its event, numbered from 1; arguments are kept no longer than needed."""
    job = submitted(store, groups=[1, 2])
    assert (store.job(job).state, store.next_job()) == ("queued", job)
    begun = store.begin(job)
    assert (begun.arguments, begun.num_begun, begun.base_step) == ({"groups": [1, 2]}, 1, None)
    store.set_base_step(job, 7)
    store.report(job, {"share": 0.5})
    store.succeed(job, {"step": 8})
    view = store.job(job)
    assert (view.state, view.result, view.error, store.next_job()) == ("succeeded", {"step": 8}, None, None)
    events = store.events(job)
    assert [event.number for event in events] == [1, 2, 3, 4]
    assert [event.kind for event in events] == ["queued", "started", "progress", "succeeded"]
    assert [event.data for event in events[2:]] == [{"share": 0.5}, {"step": 8}]
    assert store.events(job, after=3) == events[3:]
    assert store._rows("SELECT arguments FROM jobs") == [(None,)]


def test_one_idempotency_key_is_one_job(store: JobStore) -> None:
    """The same job sent twice is found again, ended or not; another one under its key is refused."""
    job = submitted(store, "key-1", groups=[1])
    assert submitted(store, "key-1", groups=[1]) == job
    store.begin(job)
    store.fail(job, ErrorView(type="user_error", message="no"))
    assert submitted(store, "key-1", groups=[1]) == job
    with pytest.raises(AgentError, match="key of its own") as refused:
        submitted(store, "key-1", groups=[2])
    assert (refused.value.status, refused.value.code) == (409, "idempotency_conflict")
    assert submitted(store, groups=[1]) != submitted(store, groups=[1])


def test_jobs_are_worked_on_in_order(store: JobStore) -> None:
    """What a server left behind comes first, because it came first."""
    first, second = submitted(store, n=1), submitted(store, n=2)
    store.begin(first)
    assert store.next_job() == first
    assert store.begin(first).num_begun == 2
    store.succeed(first, {})
    assert store.next_job() == second
    assert [view.id for view in store.jobs("mail", "agent-001")] == [first, second]


def test_only_a_queued_job_is_cancelled(store: JobStore) -> None:
    """A cancelled job is never begun; one that was begun cannot be cancelled."""
    first, second = submitted(store), submitted(store)
    assert store.cancel(second).state == "cancelled" and store.cancel(second).state == "cancelled"
    assert [event.kind for event in store.events(second)] == ["queued", "cancelled"]
    store.begin(first)
    with pytest.raises(AgentError, match="is running") as refused:
        store.cancel(first)
    assert refused.value.status == 409
    with pytest.raises(AgentError, match="no job 'job-x'"):
        store.cancel("job-x")


def test_another_model_of_the_same_name_is_refused(store: JobStore) -> None:
    """Registering again is allowed; with another base model it says what differs."""
    store.register(MODEL)
    with pytest.raises(AgentError, match='base_model="smollm2-135m", not "qwen"') as refused:
        store.register(MODEL.model_copy(update={"base_model": "qwen"}))
    assert (refused.value.status, refused.value.param) == (409, "base_model")
    assert store.models() == [MODEL]


def test_everything_is_there_after_the_process_ended(tmp_path: Path) -> None:
    """Another process finds models, jobs, events and the key's digest; two at once are refused."""
    with JobStore(tmp_path) as before:
        before.register(MODEL)
        job = submitted(before, "key-1", text="å" * 1000)
        before.begin(job)
        before.set_base_step(job, 3)
        before.set_key_digest(digest("secret"))
        with pytest.raises(UserError, match="another process serves"):
            JobStore(tmp_path)
    with JobStore(tmp_path) as after:
        assert after.key_digest == digest("secret")
        assert after.model("mail", "agent-001") == MODEL
        assert submitted(after, "key-1", text="å" * 1000) == job
        begun = after.begin(job)
        assert (begun.num_begun, begun.base_step, begun.arguments["text"]) == (2, 3, "å" * 1000)


@pytest.mark.parametrize("content", [b"another program's" * 100, bytes(range(256)) * 64])
def test_a_damaged_file_is_named_and_left_alone(content: bytes, tmp_path: Path) -> None:
    """Nothing is served from it, nothing is written over it, and the folder is free for another try."""
    (tmp_path / "jobs.db").write_bytes(content)
    for _ in range(2):
        with pytest.raises(UserError, match=r"jobs.db' cannot be used: file is not a database\. Restore it"):
            JobStore(tmp_path)
    assert (tmp_path / "jobs.db").read_bytes() == content
