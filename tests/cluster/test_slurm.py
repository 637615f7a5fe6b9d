"""The job and its steps as words; the job's script as a program, with a scontrol that writes down what it is told."""

import os
import random
import signal
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace

import pytest

from ludus.cluster.base import Role
from ludus.cluster.slurm import SlurmJob, SlurmLauncher, interrupt_job, job_of, per_node, step_command, submit
from ludus.errors import ConfigError, UserError
from ludus.processes.placement import LocalScheduler, RayScheduler, ResourceSettings, RoleSettings, SlurmScheduler
from ludus.settings import idle_keys

HEAD = """
import signal, sys, time
from pathlib import Path
def leave(*_):
    Path("left").write_text(" ".join(sys.argv[1:]))
    sys.exit(0)
signal.signal(signal.SIGINT, leave)
print("ready", sys.argv[1:], flush=True)
time.sleep(600)
"""


def job(tmp_path, command=("true",), **slurm):
    settings = SlurmScheduler(host="auto", slurm=slurm, head={"cpus": 2, "gpus": 1})
    roles = [
        (RoleSettings(cpus=2, gpus=1), 1),
        (RoleSettings(cpus=3, gpus=2, memory_gb=10.5), 2),
        (RoleSettings(cpus=0.5), 4),
    ]
    return SlurmJob("guess", tmp_path / "runs" / "guess", command, roles, settings)


def test_a_job_asks_for_what_its_roles_take(tmp_path):
    """Resources of all processes are shared out over the nodes, so that every process finds a node with its part free;
    more options stand as they were given."""
    script = job(
        tmp_path, nodes=2, options={"partition": "gpu", "time": "01:00:00", "exclusive": None}, env={"A": "b c"}
    ).script()
    lines = script.splitlines()
    for line in (
        "#SBATCH --nodes=2",
        "#SBATCH --cpus-per-task=7",
        "#SBATCH --gpus-per-node=3",
        "#SBATCH --mem=11G",
        "#SBATCH --requeue",
        "#SBATCH --signal=B:USR1@120",
        "#SBATCH --partition=gpu",
        "#SBATCH --exclusive",
        "export A='b c'",
    ):
        assert line in lines, line
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0


def test_a_step_takes_its_own_share():
    """A process of a role is one task with exact resources of the job."""
    role = Role("engine", ("python",), RoleSettings(cpus=1.5, gpus=1, memory_gb=2.0))
    words = step_command(role, 3)
    assert words[0] == "srun" and "--exact" in words
    assert {"--cpus-per-task=2", "--gpus=1", "--mem=2G", "--ntasks=1", "--job-name=engine-3"} <= set(words)
    assert not {"--overlap", "--gres=none"} & set(words)


def test_a_step_without_cards_takes_none_of_the_jobs():
    """Slurm would give it all of them, and every later step would wait; one that computes on cards without a
    reservation shares them."""
    role = Role("rollout", ("python",), RoleSettings())
    assert "--gres=none" in step_command(role, 0)
    engine = step_command(replace(role, name="engine", cards=1), 0)
    assert "--overlap" in engine and "--gres=none" not in engine


@pytest.mark.parametrize(
    ("sizes", "num_nodes", "least"),
    [
        ([], 2, 0),
        ([0, 0], 2, 0),
        ([1, 2, 3], 1, 6),
        ([1, 1, 1], 2, 2),
        ([2, 2, 2], 2, 4),  # 3 on each would leave the third one without a node
        ([11, 11], 2, 11),
        ([1, 2, 2], 2, 3),
        ([2, 3, 3, 1, 1, 1, 1], 2, 7),
        ([200] * 64, 8, 1600),
    ],
)
def test_every_process_finds_a_node(sizes, num_nodes, least):
    """In whatever order they come, and onto whichever node with room Slurm puts each; with less some would wait."""
    assert per_node(sizes, num_nodes) == least
    chance = random.Random(0)
    for _ in range(50):
        left = [least] * num_nodes
        for size in chance.sample(sizes, len(sizes)):
            left[chance.choice([node for node, free in enumerate(left) if free >= size])] -= size


def test_options_of_the_whole_job_are_not_those_of_a_step(tmp_path, monkeypatch):
    """srun reads them in its environment; a step would take all cards, or memory that other steps need."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    for name in ("GPUS_PER_NODE", "GPUS", "MEM_PER_NODE", "MEM_PER_CPU", "CPUS_PER_TASK"):
        monkeypatch.setenv(f"SLURM_{name}", "8")
    monkeypatch.setattr("ludus.cluster.slurm._need", lambda _: None)
    kept = SlurmLauncher(tmp_path)._inherited()
    assert [name for name in kept if name.startswith("SLURM_") and kept[name] == "8"] == []
    assert kept["SLURM_JOB_ID"] == "7"


@pytest.fixture
def steps(tmp_path, monkeypatch):
    """Puts this process into a job, in which `srun` writes down its arguments, and says which cards the step has."""

    def put(cards):
        tools = tmp_path / "tools"
        tools.mkdir()
        told = f'#!/bin/sh\necho "$@" >> {tmp_path}/told\necho "{cards}"\nexec sleep 600\n'
        (tools / "srun").write_text(told)
        (tools / "srun").chmod(0o755)
        job = {"PATH": f"{tools}:{os.environ['PATH']}", "SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n3"}
        for name, value in job.items():
            monkeypatch.setenv(name, value)

    return put


def test_the_heads_cards_are_held_by_a_step(tmp_path, steps):
    """Before any role begins, on the head's node, until the end: the head itself is no step, and `--exact` would give
    its cards away."""
    steps("cards: GPU-1")
    SlurmLauncher(tmp_path / "run", head=ResourceSettings(gpus=0), head_card="GPU-1").close()
    launcher = SlurmLauncher(tmp_path / "run", head=ResourceSettings(cpus=2, gpus=1), head_card="GPU-1")
    role = Role("engine", ("python",), RoleSettings(gpus=1))
    started = launcher._begin(role, 0, {}, tmp_path / "log")
    while len((tmp_path / "told").read_text().splitlines()) < 2:
        assert started.poll() is None
    started.stop(0)
    held, asked = (set(line.split()) for line in (tmp_path / "told").read_text().splitlines())
    assert {"--exact", "--nodelist=n3", "--gpus=1", "--ntasks=1", "--cpus-per-task=1"} <= held
    assert "--job-name=engine-0" in asked
    launcher.close()
    assert launcher._head_cards.poll() is not None


@pytest.mark.parametrize(
    ("said", "error", "match"),
    [
        ("cards: GPU-2", ConfigError, "computes on the card GPU-1, and Slurm reserves GPU-2"),
        ("cards: 0", None, None),  # Slurm's number on this node may be any card's
    ],
)
def test_a_card_that_slurm_holds_in_place_of_the_heads_is_told(tmp_path, steps, said, error, match):
    """Before a role gets the head's."""
    steps(said)
    launcher = SlurmLauncher(tmp_path / "run", head=ResourceSettings(gpus=1), head_card="GPU-1")
    role = Role("engine", ("python",), RoleSettings(gpus=1))
    with nullcontext() if error is None else pytest.raises(error, match=match):
        launcher._begin(role, 0, {}, tmp_path / "log").stop(0)
    launcher.close()


@pytest.fixture
def run_script(tmp_path):
    """The script of a job, begun where `scontrol` writes down what it is told."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "scontrol").write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/told\n')
    (tools / "scontrol").chmod(0o755)
    (tmp_path / "head.py").write_text(HEAD)
    running = []

    def begin(**env):
        script = job(tmp_path, (sys.executable, str(tmp_path / "head.py"))).script()
        environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "SLURM_JOB_ID": "7", **env}
        process = subprocess.Popen(
            ["bash", "-c", script], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
        )
        running.append(process)
        return process, process.stdout.readline()

    yield begin
    for process in running:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_job_that_runs_out_of_time_is_saved_and_queued_again(run_script, tmp_path, monkeypatch):
    """USR1 reaches the head as Ctrl-C; it leaves, and the job is queued again."""
    monkeypatch.chdir(tmp_path)
    process, said = run_script()
    assert said == "ready []\n"
    process.send_signal(signal.SIGUSR1)
    assert process.wait(30) == 0
    assert (tmp_path / "told").read_text() == "requeue 7\n"
    assert (tmp_path / "left").exists()


def test_a_job_that_begins_again_goes_on(run_script, tmp_path, monkeypatch):
    """After a requeue the head goes on from its checkpoint, if the run had begun; TERM saves and queues nothing."""
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "runs" / "guess"
    run.mkdir(parents=True)
    (run / "run.db").touch()
    process, said = run_script(SLURM_RESTART_COUNT="1")
    assert said == "ready ['--resume']\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0
    assert not (tmp_path / "told").exists()


def test_what_cannot_be_submitted_is_said(tmp_path, monkeypatch):
    """Outside of a job and without Slurm's programs the message says what is needed; a template is checked."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    with pytest.raises(UserError, match="needs sbatch"):
        submit(job(tmp_path))
    assert job_of(tmp_path) is None
    with pytest.raises(UserError, match="submits one by itself"):
        SlurmLauncher(tmp_path)
    wrong = tmp_path / "wrong.jinja"
    wrong.write_text("{{ colour }}")
    with pytest.raises(UserError, match=r"'colour' is undefined; there are .*cpus_per_node"):
        job(tmp_path, template=str(wrong)).script()
    with pytest.raises(UserError, match="cannot read"):
        job(tmp_path, template=str(tmp_path / "none")).script()


def test_a_run_of_others_hands_slurm_no_options(tmp_path):
    """What stands for a job's number is a number, or is refused: `scancel --user=…` would end what is not the run's."""
    (tmp_path / "roles").mkdir()
    kept = tmp_path / "roles" / "job.id"
    for number in ("4711", "4711_3", "4711+1"):
        kept.write_text(f"{number}\n")
        assert job_of(tmp_path) == number
    for wrong in (b"", b"--user=me", b"4711 --user=me", b"4711\xff", b"4711\0"):
        kept.write_bytes(wrong)
        with pytest.raises(UserError, match=r"job.id is damaged: .* is no number of a job"):
            job_of(tmp_path)
    with pytest.raises(UserError, match=r"roles.json is damaged: '--user=me' is no number of a job"):
        interrupt_job("--user=me", tmp_path / "roles.json")


def test_settings_of_another_scheduler_cannot_be_written():
    """Each scheduler's own keys belong to it; what contradicts itself is refused, and what does not act is named."""
    for scheduler, wrong in (
        (LocalScheduler, {"slurm": {"nodes": 2}}),
        (SlurmScheduler, {"ray": {"address": "x"}}),
        (LocalScheduler, {"head": {"cpus": 2}}),
        (SlurmScheduler, {"head": {"env": {"A": "b"}}}),
        (SlurmScheduler, {"slurm": {"nodes": 2}, "host": "127.0.0.1"}),
        (LocalScheduler, {"host": "0.0.0.0"}),
    ):
        with pytest.raises(ConfigError):
            scheduler(**wrong)
    assert [each.key for each in idle_keys(LocalScheduler(engine={"memory_gb": 3}))] == ["engine.memory_gb"]
    assert not idle_keys(RayScheduler(engine={"memory_gb": 3}))
    assert LocalScheduler().address == SlurmScheduler().address == "127.0.0.1"
    assert SlurmScheduler(slurm={"nodes": 2}).address == LocalScheduler(host="auto").address
