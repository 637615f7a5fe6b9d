"""The house itself: imports go down, files and functions stay short, torch stays below, the public surface is exact."""

import ast
import functools
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ludus.algorithms.table import CORRECTIONS, ESTIMATORS, LOSSES, PRESETS
from tests.conftest import LONGEST

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "ludus"

# Topmost first. A file may import from its own folder and from those below it; folders on one line do not know each
# other.
LAYERS = (
    ("__main__",),
    ("cli",),
    ("checks",),
    ("compat",),
    ("cluster",),
    ("__init__",),
    ("api",),
    ("config",),
    ("loop",),
    ("rollout",),
    ("agents",),
    ("rewards",),
    ("gateway",),
    ("episodes",),
    ("teachers",),
    ("trainer",),
    ("engines",),
    ("runs",),
    ("models",),
    ("kernels",),
    ("text",),
    ("algorithms",),
    ("processes", "http"),
    ("import_strings",),
    ("settings",),
    ("machine",),
    ("types",),
    ("errors",),
)
HEIGHT = {room: len(LAYERS) - layer for layer, rooms in enumerate(LAYERS) for room in rooms}
FAMILIES = ("ludus.compat.areal", "ludus.compat.art", "ludus.compat.realhf", "ludus.compat.verl")
# What stands above the core touches it through these modules; `folder.*` is a whole folder.
SEAMS = {
    "the ground: nouns, errors, settings": "errors import_strings machine settings types config",
    "what users of Ludus call": "api.*",
    "Episodes: a session's life, and what it comes to": (
        "episodes.archive episodes.claim episodes.episode episodes.episodes episodes.handle episodes.keys "
        "episodes.ledger episodes.limits episodes.outcome episodes.reward episodes.spec"
    ),
    "Engine": "engines.base engines.settings engines.table",
    "Dialect, and the server that speaks them": (
        "gateway.app gateway.dialects.base gateway.dialects.chat.dialect gateway.server gateway.transport"
    ),
    "Algorithm": "algorithms.settings",
    "AgentAdapter": "agents.adapter agents.environments.base agents.kinds agents.plain",
    "programs that do not block, have keys and find models": (
        "http.keys models.resolve processes.blocking processes.gather"
    ),
}
# And each through these besides, for the reason that stands there.
BEYOND_SEAMS = {
    "compat": {
        "tools, signatures and LangChain's messages of families' agents": (
            "agents.langchain.* agents.signatures agents.tools.*"
        ),
        "agents that ask by tokens render, sample and read replies themselves": (
            "episodes.reply episodes.session gateway.dialects.sampling text.chat text.parse text.parsers.base "
            "text.template"
        ),
        "judges and verifiers under the originals' names": "rewards.*",
        "groups of a loop of the user's own, handed in": (
            "loop.batch loop.sft rollout.groups rollout.mixture runs.store"
        ),
        "what originals show of episodes, steps and runs": (
            "gateway.interactions loop.evaluate loop.observer runs.interactions runs.metrics runs.spans"
        ),
        "settings that they extend, give other defaults, or name": (
            "loop.settings models.settings rollout.settings runs.settings"
        ),
        "answers streamed to clients of their models": "http.sse",
        "one card is shared in turns, several are not": "processes.cards",
    },
    "cluster": {
        "a process that is an engine": "engines.* text.tokenizer",
        "a process that is a trainer's rank": "models.device models.load models.shards trainer.* loop.trainer_thread",
        "a process that plays rollouts": (
            "agents.actors rollout.remote rollout.settings rollout.work_queue rollout.worker"
        ),
        "servers of its own": "gateway.exchange http.* runs.database",
        "where processes are": "processes.*",
    },
    "checks": {
        "parts are held against their laws, and measured, one by one": (
            "algorithms.* engines.lease engines.local.* engines.routed.engine episodes.export episodes.session "
            "episodes.stats loop.batch models.load models.settings models.untrained rollout.groups rollout.mixture "
            "rollout.pool rollout.runner rollout.runtime rollout.settings rollout.tasks runs.codec "
            "runs.interactions runs.journal runs.plot runs.settings runs.spans runs.store runs.trackers.select "
            "trainer.*"
        ),
        "engines and servers that are scripted": "engines.scripted episodes.recorder processes.notifier",
        "runs are processes, which things happen to": "processes.end_with_parent processes.ended processes.program",
        "the doctor looks at templates, parsers and tokens": "text.*",
        "and at the machine, as the parts that compute see it": (
            "kernels.build kernels.linear models.device models.dtype models.threads"
        ),
        "how long and how much, and figures that outlive a broken-off run": (
            "loop.memory loop.observer processes.files runs.metrics"
        ),
        "what a run that was ended has saved": "loop.checkpoint loop.interrupt runs.folder",
    },
    "cli": {
        "runs are shown": (
            "algorithms.* episodes.export loop.batch loop.observer loop.train rollout.groups runs.decoder runs.export "
            "runs.failures runs.folder runs.interactions runs.metrics runs.names runs.report runs.settings runs.store "
            "runs.view runs.watch.* text.tokenizer processes.end_with_parent"
        ),
        "models of others are played and served": (
            "agents.http_clients agents.thread episodes.graph episodes.recorder gateway.traffic http.body http.server "
            "http.sse http.tls processes.gather rollout.mixture rollout.playing rollout.subproc rollout.tasks "
            "runs.trackers.select"
        ),
        "what is fetched, submitted and examined": (
            "engines.serving.command kernels.build models.fetch models.untrained processes.placement processes.program "
            "text.chat"
        ),
        "which signals end a command, and how it holds memory": "loop.interrupt processes.allocator",
    },
}
MOST_LINES_PER_FILE = 500
MOST_LINES_PER_FUNCTION = 60
MOST_LINES_PER_FUNCTION_OF_THE_STORY = 100
NEEDS_TORCH = (
    "ludus.models",
    "ludus.kernels.adamw",
    "ludus.kernels.head",
    "ludus.kernels.library",
    "ludus.kernels.rounding",
    "ludus.kernels.rowwise",
    "ludus.kernels.tree",
    "ludus.engines.local",
    "ludus.engines.local.engine",
    "ludus.engines.serving.files",
    "ludus.kernels.linear",
    "ludus.kernels.paged",
    "ludus.kernels.triton_rowwise",
    "ludus.teachers.model",
    "ludus.trainer",
    "ludus.checks.doctor.demo",
    "ludus.checks.doctor.machine",
    "ludus.checks.bench.turns",
    "ludus.checks.bench.ceiling",
    "ludus.checks.bench.profile",
    "ludus.checks.bench.publish",
    "ludus.checks.bench.quota",
    "ludus.checks.bench.row",
    "ludus.checks.bench.sample",
    "ludus.checks.bench.train",
)


@functools.cache
def tree_of(path):
    return ast.parse(path.read_text())


def sources():
    return sorted(PACKAGE.rglob("*.py"))


def module_name(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(module):
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def imported_modules(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield node.lineno, node.module or ""
        elif isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)


def core_modules(tree):
    """Line and name of every module of the core that is imported; `from package import module` names the module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "ludus":
            folder = ROOT / node.module.replace(".", "/")
            for alias in node.names:
                is_module = (folder / f"{alias.name}.py").exists() or (folder / alias.name).is_dir()
                yield node.lineno, f"{node.module}.{alias.name}" if is_module else node.module
        elif isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names if alias.name.split(".")[0] == "ludus")


def test_every_room_has_a_floor():
    """A new folder or file must be given its place in the house."""
    rooms = {room_of(module_name(path)) for path in sources()}
    assert rooms <= set(HEIGHT), f"rooms without a floor: {sorted(rooms - set(HEIGHT))}"


def test_imports_go_down_only():
    """No file imports from a floor above it or from another room on its own floor; the package's own `__init__` says
    where its names are, on any floor."""
    wrong = []
    for path in (path for path in sources() if path != PACKAGE / "__init__.py"):
        here = room_of(module_name(path))
        for line, module in imported_modules(tree_of(path)):
            if module.split(".")[0] != "ludus":
                continue
            there = room_of(module)
            if there != here and HEIGHT[there] >= HEIGHT[here]:
                wrong.append(f"{path.relative_to(ROOT)}:{line} {here} imports {module}")
    assert not wrong, "\n".join(wrong)


def test_the_core_names_nothing_above_it():
    """No file of the core speaks of guests, clusters, checks or the command line, in imports or in strings: it must do
    without them. Its tests do: `pytest --core`, and `make test-core` in a copy that lacks them."""
    above = [f"ludus.{room}" for room in HEIGHT if HEIGHT[room] > HEIGHT["__init__"] and room != "__main__"]
    wrong = []
    for path in (path for path in sources() if HEIGHT[room_of(module_name(path))] < HEIGHT["__init__"]):
        nodes = list(ast.walk(tree := ast.parse(path.read_text())))
        texts = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
        for named in (*texts, *(module for _, module in imported_modules(tree))):
            wrong += [f"{path.relative_to(ROOT)}: {named:.80}" for room in above if room in named]
    assert not wrong, "\n".join(wrong)


def test_the_cores_tests_import_nothing_above_it():
    """What `make test-core` finds by running them, at a glance."""
    above = tuple(f"ludus.{room}" for room in HEIGHT if HEIGHT[room] > HEIGHT["__init__"] and room != "__main__")
    rooms = [room for room in HEIGHT if HEIGHT[room] < HEIGHT["__init__"]]
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {module}"
        for room in rooms
        for path in (ROOT / "tests" / room).rglob("test_*.py")
        for line, module in imported_modules(tree_of(path))
        if f"{module}.".startswith(tuple(f"{name}." for name in above))
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("room", BEYOND_SEAMS)
def test_what_stands_above_reaches_in_by_name(room):
    """Guests, clusters, checks and the command line import what SEAMS names, and what BEYOND_SEAMS names for them with
    a reason: a new reach into the core is a decision."""
    named = [f"ludus.{name}" for name in " ".join((*SEAMS.values(), *BEYOND_SEAMS[room].values())).split()]
    folders = tuple(name.removesuffix("*") for name in named if name.endswith(".*"))
    wrong = []
    for path in (path for path in sources() if room_of(module_name(path)) == room):
        for line, module in core_modules(tree_of(path)):
            is_core = HEIGHT[room_of(module)] < HEIGHT["__init__"]
            if is_core and module not in named and not f"{module}.".startswith(folders):
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {module}")
    assert not wrong, "\n".join(wrong)


def test_files_and_functions_stay_short():
    """No file above 500 lines, no function above 60; the story in loop/ may have 100."""
    long = []
    for path in sources():
        text = path.read_text()
        if text.count("\n") > MOST_LINES_PER_FILE:
            long.append(f"{path.relative_to(ROOT)}: {text.count(chr(10))} lines")
        most = MOST_LINES_PER_FUNCTION_OF_THE_STORY if "loop" in path.parts else MOST_LINES_PER_FUNCTION
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > most:
                    long.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}: {length} lines")
    assert not long, "\n".join(long)


def torch_free_modules():
    names = (module_name(path) for path in sources())
    free = [name for name in names if not name.startswith(NEEDS_TORCH) and name != "ludus.__main__"]
    settings = [module_name(path) for path in sources() if path.name in ("settings.py", "resolve.py")]
    return sorted(set(free) | set(settings))


def test_the_base_install_imports_without_torch():
    """Everything above the trainer, and every settings file, imports where torch, transformers and peft are missing."""
    script = (
        "import importlib, sys\n"
        "for name in ('torch', 'transformers', 'peft', 'safetensors', 'numpy', 'openai', 'matplotlib', 'psutil'):\n"
        "    sys.modules[name] = None\n"
        f"for name in {torch_free_modules()!r}:\n"
        "    importlib.import_module(name)\n"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=False)
    assert result.returncode == 0, result.stderr


# The names of `ludus` itself come when they are first used: tests/test_import.py.
PACKAGES = sorted({module_name(path) for path in sources() if path.name == "__init__.py"} - {"ludus"})


@pytest.mark.parametrize("name", PACKAGES)
def test_all_is_exactly_the_public_surface(name):
    """`__all__` is sorted, exists, and holds every public name the package imports or defines."""
    module = importlib.import_module(name)
    names = {
        key
        for key, value in vars(module).items()
        if not key.startswith("_") and not isinstance(value, type(sys)) and key not in ("annotations", "TYPE_CHECKING")
    }
    exported = list(getattr(module, "__all__", ()))
    public = set(exported) - {"__version__"}
    assert exported == sorted(exported)
    if name.startswith(FAMILIES):
        assert all(hasattr(module, each) for each in exported)
        return
    assert names == public, f"only in one of namespace and __all__: {sorted(names ^ public)}"


@pytest.mark.parametrize("path", sorted((ROOT / "recipes").rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_recipes_stay_outside(path):
    """A recipe imports `ludus` and its families' names at most, and an agent imports only its SDK."""
    modules = {module for _, module in imported_modules(tree_of(path)) if module.startswith("ludus")}
    inside = {module for module in modules if module != "ludus" and not module.startswith(FAMILIES)}
    assert not (modules if path.name == "agent.py" else inside), modules


@pytest.mark.parametrize("path", sorted((ROOT / "bench").rglob("*.py")), ids=lambda path: path.name)
def test_benches_use_public_names(path):
    """A bench touches no name that begins with an underscore."""
    tree = tree_of(path)
    names = [node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    names += [alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names]
    private = [name for name in names if name.startswith("_") and not name.endswith("__")]
    assert not private, private


def test_no_component_knows_a_recipe():
    """The package never names a recipe."""
    folders = [folder.name for folder in (ROOT / "recipes").iterdir() if (folder / "run.yaml").exists()]
    for path in sources():
        for name in folders:
            assert f"recipes/{name}" not in path.read_text(), f"{path.relative_to(ROOT)} names {name}"


def test_only_algorithms_know_what_algorithms_there_are():
    """No name of an estimator, loss, correction or preset stands in what uses them."""
    names = {*ESTIMATORS, *LOSSES, *CORRECTIONS, *PRESETS} - {"none"}
    wrong = []
    for path in sources():
        if path.relative_to(PACKAGE).parts[0] in ("loop", "trainer", "api", "config.py"):
            for node in ast.walk(tree_of(path)):
                if isinstance(node, ast.Constant) and node.value in names:
                    wrong.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.value!r}")
    assert not wrong, "\n".join(wrong)


# Seconds of every start, wherever they are imported at the top of a file that a run always loads.
_SERVERS = {"ludus.cluster.serve.app", "ludus.engines.serving.app", "ludus.gateway.admin"}
LATE = {"peft": set(), "fastapi": {*_SERVERS, "ludus.http.api"}, "ludus.http.api": _SERVERS}


@pytest.mark.parametrize("late", LATE)
def test_what_takes_long_to_load_is_loaded_where_it_is_needed(late):
    """Playing an agent, and training with one process, loads neither peft nor FastAPI."""
    found = set()
    for path in sources():
        at_once = (node for node in tree_of(path).body if isinstance(node, ast.Import | ast.ImportFrom))
        names = {name for node in at_once for _, name in imported_modules(node)}
        if any(name == late or name.startswith(f"{late}.") for name in names):
            found.add(module_name(path))
    assert found == LATE[late]


def test_what_reads_bytes_is_made_at_import():
    """Two threads in which msgspec meets a kind for the first time end the process: see ludus.runs.codec.Decoder."""
    wrong = []
    for path in sources():
        for function in (node for node in ast.walk(tree_of(path)) if isinstance(node, ast.FunctionDef)):
            calls = [ast.unparse(node.func) for node in ast.walk(function) if isinstance(node, ast.Call)]
            late = [name for name in calls if re.fullmatch(r"msgspec\.\w+\.decode|(msgspec\.\w+\.)?Decoder", name)]
            if late and (path.name, function.name) != ("codec.py", "__init__"):
                wrong.append(f"{path.relative_to(ROOT)}:{function.lineno} {function.name} calls {late}")
    assert not wrong, "\n".join(wrong)


def test_the_longest_tests_are_there():
    """Whoever moves one moves its name too, or it is begun last."""
    assert [path for path in LONGEST if not (ROOT / path).exists()] == []
