# Every target sets up what it needs by itself: Python 3.11+, make and (for speed) a C++ compiler are all that must be there.
#   make demo    train a real model on a real task, on this CPU, and show the result
#   make test    run every test that needs nothing but the package
#   make test-all    those, and those of test-browser, in one run
#   make test-core   the core's tests, where compat/, cluster/, checks/ and cli/ are deleted
#   make fuzz    send the gateway 10,000 bodies of all kinds
#   make setup   only set up; .venv/bin/ludus then works
#   make test-frameworks   run agents of many frameworks, those that need an environment of their own too
#   make test-engines    the engine contract against a real vLLM server, which bench/peers.sh sets up
#   make test-oracles    advantages, losses and gradients beside those of verl and TRL, which bench/peers.sh sets up
#   make test-launch     servers launched through a real sshd, on a port and with keys of its own (Debian's is installed if
#                        there is none, and not started), and on a real Ray cluster
#   make test-trackio    runs in trackio, which does not install together with the rest
#   make test-triton  the kernels for cards, interpreted on this processor, and compiled for a card
#   make test-card-env   every test in an environment as on machines with cards: Python 3.12, torch 2.11, transformers 5.17
#   make test-matrix     what depends on transformers, with the oldest and the newest that may be installed
#   make test-without    processes, sandbox and verifiers where prctl, os.waitid, Landlock, namespaces … are taken away, one by one
#   make test-gpu   what runs on a CUDA card, held against the processor; `make test-gpu LIST=yes` only lists it
#   make gpu-kit    pack what a machine with a card and no network lacks, in folders of at most KIT_MB megabytes
#   make test-slurm      runs in a real Slurm of one node, which is installed here: CONSENT=yes says that you agree
#   make test-builds     kernels, engine, trainer and two steps of the demo as other processors and compilers get them, and with
#                        sanitizers (Debian's clang is installed if there is none); make bench-builds   how fast each build is
#   make test-aarch64    the kernels for aarch64, under qemu (Debian's is installed if there is none)
#   make wheels  a wheel for x86-64 and one for aarch64, in build/wheels, with the kernels compiled: their users need no compiler
#                (g++ and aarch64-linux-gnu-g++ must be there)
#   make test-browser    what shows itself in a browser, looked at in a real one (Chromium; Debian's is installed if there is none)
#   make docs    build the documentation as a site, build/site/index.html, which needs no network;   make check-docs   look at it in a browser
#   make web     build the page of `ludus watch` from web/ (needs npm);   make check-web   see that what is committed is that
#   make chaos   kill, stop, cut off and deny its disk to a run 50 times, for three seeds (about an hour)
#   make release the wheel and the source archive of what is committed, the same bytes on every machine, with their sums
#   make audit   weaknesses known of what is installed, its licences, and a list of it (CycloneDX), in build/audit
#   make server-fields  download the wheels of vLLM and SGLang and hold what stands in for them to what these take
#   make public-names   download the originals' wheels and write the lists of their public names that the tables are held to
#   make lint    ruff          make check   strict types          make bench   measure this machine

PYTHON ?= python3
SEED   ?= 0
PEERS  ?= .peers
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

# One thread: the models of the tests are tiny, and two threads would mostly wait for each other. Two processes share the
# files, the longest first (tests/conftest.py): a file stays in one.
PYTEST    := OMP_NUM_THREADS=1 $(BIN)/python -m pytest
PROCESSES ?= 2
SHARED    := -n $(PROCESSES) --dist loadfile --no-loadscope-reorder

# What some tests need of the machine. Debian starts what it installs, unless policy-rc.d says no.
SSHD     := test -x /usr/sbin/sshd || tests/cluster/remote/install-sshd.sh
# axe-core, which finds what keeps people from reading a page: taken out of a wheel of which nothing is installed.
AXE_WHEEL := axe-playwright-python==0.1.8
AXE := test -f build/axe/axe_playwright_python/axe.min.js || { \
  $(BIN)/python -m pip download --quiet --no-deps --only-binary :all: --ignore-requires-python -d build/axe $(AXE_WHEEL) && \
  $(BIN)/python -m zipfile -e build/axe/*.whl build/axe; }
CHROMIUM := command -v chromium >/dev/null || { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; }

# Where the environment forbids bytecode, every process that a test starts would compile the package anew.
export PYTHONDONTWRITEBYTECODE :=

# Frameworks that do not install together with ours: each gets the environment that its requirements.txt locks.
FRAMEWORKS := $(patsubst tests/%/requirements.txt,.%/.ready,$(wildcard tests/frameworks/*/requirements.txt))

.PHONY: docs check-docs web check-web attack release audit chaos demo test test-gpu gpu-kit test-triton test-card-env test-matrix test-without test-all test-core machine test-launch test-builds test-aarch64 bench-builds wheels test-browser test-frameworks test-engines test-oracles test-trackio test-slurm fuzz public-names server-fields setup lint check bench clean

demo: $(READY)
	$(BIN)/ludus models get smollm2-135m
	$(BIN)/ludus train recipes/guess/run.yaml --new --json seed=$(SEED)

test: $(READY)
	$(BIN)/ludus models get smollm2-135m
	$(PYTEST) $(SHARED)

test-all: $(READY) machine
	$(BIN)/ludus models get smollm2-135m
	$(PYTEST) $(SHARED) -o 'python_files=test_*.py in_browser.py'

# The core by itself: its tests pass in a copy from which the guests, clusters, checks and the command line are deleted.
test-core: $(READY)
	$(BIN)/ludus models get smollm2-135m
	rm -rf build/core && mkdir -p build/core
	git ls-files -z | grep -zvE '^ludus/(compat|cluster|checks|cli)/' | xargs -0 cp --parents -t build/core
	cd build/core && OMP_NUM_THREADS=1 $(abspath $(BIN))/python -m pytest --core $(SHARED) $(CORE)

machine: $(READY)
	$(SSHD)
	$(CHROMIUM)
	$(AXE)

# What is promised in docs/promises.md, tried: every attack, behind every kind of walls that this machine has.
attack: $(READY)
	$(PYTEST) -o 'python_files=test_*.py every_wall.py every_file.py' tests/attacks tests/http tests/test_network.py tests/cluster/test_foreign.py \
	  tests/gateway/test_fuzz.py tests/gateway/test_keys.py tests/gateway/test_disconnect.py \
	  tests/runs/test_report.py tests/text/test_template.py

# The shape of the tests: what is tried is processes, and a larger model would only take longer.
chaos: $(READY)
	$(BIN)/ludus models get smollm2-135m
	test -d build/tiny || $(BIN)/ludus models random bench/shapes/tiny.json build/tiny
	set -e; for seed in 0 1 2; do $(BIN)/ludus verify chaos --kills 50 --seed $$seed --model build/tiny --json; done

# The same bytes whoever builds them, of what is committed.
release: $(READY)
	$(BIN)/python release.py build/release

AUDIT := .audit/bin
audit: $(READY) .audit/.ready
	mkdir -p build/audit
	$(AUDIT)/cyclonedx-py environment --output-reproducible --output-file build/audit/sbom.json $(BIN)/python
	$(AUDIT)/pip-licenses --python $(BIN)/python --format markdown --with-urls --partial-match --output-file build/audit/licences.md \
	  --fail-on "AGPL;Affero;GPLv2;GPLv3;GPL-2;GPL-3"
	$(AUDIT)/pip-audit --progress-spinner off --path "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"

.audit/.ready: Makefile
	$(PYTHON) -m venv .audit
	$(AUDIT)/python -m pip install --quiet --disable-pip-version-check pip-audit==2.10.1 pip-licenses==5.5.5 cyclonedx-bom==7.5.0
	touch $@

test-frameworks: $(READY) $(FRAMEWORKS)
	$(PYTEST) -o 'python_files=test_*.py separate.py' tests/frameworks

test-launch: $(READY)
	$(SSHD)
	$(BIN)/ludus models get smollm2-135m
	$(PYTEST) -o 'python_files=over_ssh.py over_ray.py' tests/cluster/remote tests/docs

# What computes in our kernels, and a few steps of the demo, in builds that this processor could do without. A sanitizer
# has to be loaded first of all, but by no compiler, which would take minutes with it.
KERNEL_TESTS := tests/kernels/test_tree.py tests/kernels/test_linear.py tests/kernels/test_rowwise.py tests/trainer/test_softmax.py tests/trainer/test_adamw.py
BUILD_TESTS  := $(KERNEL_TESTS) tests/engines/local/draws tests/engines/local/kernels tests/engines/local/test_core.py \
  tests/trainer/test_step.py tests/trainer/test_rounding.py
FEW_STEPS    := recipes/guess/run.yaml --new run_root=build/runs total_train_steps=2 eval.before=false eval.after=false
SANITIZED    := -fsanitize=address,undefined -fno-sanitize-recover=all
PRELOADED    := ASAN_OPTIONS=detect_leaks=0 LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libstdc++.so.6)"
# A compiler as one that has no OpenMP: threads are ours then.
OWN_THREADS  := -fno-openmp -fopenmp-simd
CLANG := command -v clang++ >/dev/null || { apt-get update -qq && apt-get install -y -qq --no-install-recommends clang libomp-dev; }

# $(1): variables of the environment. $(2): further tests.
define in_build
	$(1) $(PYTEST) $(2) $(BUILD_TESTS)
	$(1) $(BIN)/ludus train $(FEW_STEPS)
endef

test-builds: $(READY)
	$(CLANG)
	$(BIN)/ludus models get smollm2-135m
	$(call in_build,CXXFLAGS=-march=x86-64-v3)
	$(call in_build,CXXFLAGS=-march=x86-64-v2)
	$(call in_build,CXXFLAGS=-mno-amx-bf16)
	$(call in_build,CXXFLAGS="$(OWN_THREADS)",tests/kernels/test_threads.py)
	$(call in_build,CXX=clang++)
	$(call in_build,CXX=clang++ CXXFLAGS=-march=x86-64-v3)
	$(call in_build,CXX=clang++ CXXFLAGS="$(OWN_THREADS)",tests/kernels/test_threads.py)
	CXXFLAGS="$(SANITIZED)" $(BIN)/python -m ludus.kernels.build
	$(call in_build,CXXFLAGS="$(SANITIZED)" $(PRELOADED))
	CXXFLAGS="$(SANITIZED) $(OWN_THREADS)" $(BIN)/python -m ludus.kernels.build
	$(call in_build,CXXFLAGS="$(SANITIZED) $(OWN_THREADS)" $(PRELOADED),tests/kernels/test_threads.py)

# Python and torch for aarch64, emulated; what starts another Python would need an emulator that the system knows of.
QEMU := { command -v qemu-aarch64 && command -v aarch64-linux-gnu-g++; } >/dev/null || { \
  apt-get update -qq && apt-get install -y -qq --no-install-recommends qemu-user g++-aarch64-linux-gnu libc6-dev-arm64-cross; }
STARTS_PYTHON := tests/kernels/test_tree.py::test_scratch_memory_of_a_long_row_is_given_back
test-aarch64: $(READY)
	$(QEMU)
	tests/kernels/aarch64.sh build/aarch64 $(KERNEL_TESTS) --deselect $(STARTS_PYTHON)

# How many times as fast as torch each build is, on one thread and on all.
bench-builds: $(READY)
	$(CLANG)
	$(BIN)/python bench/kernels.py --threads 1
	$(BIN)/python bench/kernels.py

# What processes, sandbox and verifiers may lack, taken away one by one: every test passes, or is skipped with the words
# in which the feature says that it is not there.
WITHOUT       := prctl functions landlock namespaces mount_setattr seccomp
WITHOUT_TESTS := tests/processes tests/rewards tests/attacks/test_sandbox.py tests/compat/realhf/test_math_code.py \
  tests/compat/verl/test_gsm8k.py
test-without: $(READY)
	$(PYTEST) tests/processes/test_without.py
	set -e; for taken in $(WITHOUT); do echo "without $$taken:"; \
	  OMP_NUM_THREADS=1 $(BIN)/python tests/processes/without.py $$taken \
	    $(BIN)/python -m pytest -q -rs $(WITHOUT_TESTS) --ignore=tests/processes/test_without.py; done

wheels: $(READY)
	rm -rf build/wheels && mkdir -p build/wheels
	set -e; for compiler in g++ aarch64-linux-gnu-g++; do \
	  rm -rf build/wheel-tree && mkdir -p build/wheel-tree; \
	  git ls-files -z ludus pyproject.toml README.md ludus_vllm | xargs -0 cp --parents -t build/wheel-tree; \
	  platform=$$(CXX=$$compiler $(BIN)/python -m ludus.kernels.ship build/wheel-tree/ludus/kernels/prebuilt); \
	  $(BIN)/python -m pip wheel --quiet --no-deps -w build/wheels --config-settings="--build-option=--plat-name=$$platform" ./build/wheel-tree; \
	done
	ls -l build/wheels

test-browser: $(READY)
	$(CHROMIUM)
	$(AXE)
	$(PYTEST) -o 'python_files=in_browser.py' tests

# More than 10,000 bodies, most of them wrong, to every route of the gateway.
fuzz: $(READY)
	$(PYTEST) tests/gateway/test_fuzz.py --hypothesis-profile=fuzz --timeout=1200

test-engines: $(READY)
	$(BIN)/ludus models get smollm2-135m
	PYTHON=$(PYTHON) bench/peers.sh $(PEERS) vllm
	LUDUS_VLLM=$(PEERS)/vllm/bin/python $(BIN)/python -m pytest tests/cluster/real_vllm.py

# Triton is kept apart: torch for the CPU does without it, and would import it if it were there.
TRITON := build/triton
$(TRITON)/.ready: Makefile
	rm -rf $(TRITON)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target $(TRITON) triton==3.9.0
	touch $@

test-triton: $(READY) $(TRITON)/.ready
	PYTHONPATH=$(TRITON) TRITON_DEFAULT_FP_FUSION=1 $(PYTEST) -o 'python_files=compiled.py' tests/kernels
	PYTHONPATH=$(TRITON) TRITON_INTERPRET=1 $(PYTEST) -o 'python_files=interpreted.py' tests/engines tests/models

# As machines with cards have it today, and no card is needed. torch for CUDA takes 6 GB of disk.
CARD_PYTHON ?= $(firstword $(wildcard $(HOME)/.pyenv/versions/3.12*/bin/python) python3.12)
.card-env/.ready: pyproject.toml tests/card_env/constraints.txt
	$(CARD_PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 12) and "this wants Python 3.12; try: make test-card-env CARD_PYTHON=python3.12")'
	test -x .card-env/bin/python || $(CARD_PYTHON) -m venv .card-env
	.card-env/bin/python -m pip install --quiet --disable-pip-version-check -c tests/card_env/constraints.txt -e '.[dev]'
	.card-env/bin/python -m ludus.kernels.build
	touch $@

test-card-env: .card-env/.ready
	.card-env/bin/ludus models get smollm2-135m
	OMP_NUM_THREADS=1 .card-env/bin/python -m pytest $(SHARED)

# The ends of what transformers may be, in front of the one that is installed.
MATRIX := oldest newest
build/matrix/%/.ready: tests/matrix/%.txt
	rm -rf build/matrix/$*
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target build/matrix/$* -r $<
	touch $@

test-matrix: $(READY) $(MATRIX:%=build/matrix/%/.ready)
	set -e; for end in $(MATRIX); do \
	  PYTHONPATH=build/matrix/$$end $(PYTEST) $(SHARED) tests/models tests/text tests/trainer tests/engines/local tests/kernels; done

# trackio wants an older Pillow than ours, which it needs for pictures alone: it is kept apart, with what only it needs.
TRACKIO := build/trackio
$(TRACKIO)/.ready: Makefile
	rm -rf $(TRACKIO)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target $(TRACKIO) \
	  trackio==0.43.0 gradio_client==2.7.2 brotli==1.2.1 watchfiles==1.3.0
	touch $@

test-trackio: $(READY) $(TRACKIO)/.ready
	PYTHONPATH=$(abspath $(TRACKIO)) $(PYTEST) -o 'python_files=with_trackio.py' tests/runs/trackers

# Without a card the list is shown all the same; running it ends with exit code 2.
test-gpu: $(READY)
ifdef LIST
	$(PYTEST) -o 'python_files=on_card.py' tests/gpu --collect-only -q
else
	$(BIN)/python -c 'import sys, torch; torch.cuda.is_available() or sys.exit("no card: torch finds none here")'
	$(PYTEST) -o 'python_files=on_card.py' tests/gpu
endif

# What `ludus bench gpu` needs where there is no network: docs/checks-bench.md. Folders travel one by one.
KIT_MB ?= 40
gpu-kit: $(READY)
	$(BIN)/python bench/kit/fill.py --mb $(KIT_MB) build/gpu-kit

test-oracles: $(READY)
	PYTHON=$(PYTHON) bench/peers.sh $(PEERS) verl
	PYTHON=$(PYTHON) bench/peers.sh $(PEERS) trl
	LUDUS_PEERS=$(PEERS) $(PYTEST) tests/oracles/against_peers.py

test-slurm: $(READY)
	test "$(CONSENT)" = yes || { echo "This installs Debian's slurm-wlm and munge and starts their daemons; to agree: CONSENT=yes make test-slurm" >&2; exit 2; }
	OMP_NUM_THREADS=1 CONSENT=yes $(BIN)/python -m pytest tests/cluster/real_slurm.py tests/cluster/remote/over_slurm.py

# The servers' own wheels, read as text: what stands in for them in tests takes what they take. 400 MB.
SERVERS := vllm=vllm==0.32.0 sglang=sglang==0.5.23
server-fields: $(READY)
	set -e; for each in $(SERVERS); do \
	  server=$${each%%=*}; folder=build/wheels/$$server; rm -rf $$folder; \
	  $(BIN)/python -m pip download --quiet --no-deps --only-binary :all: --ignore-requires-python -d $$folder "$${each#*=}"; \
	  $(BIN)/python -m tests.engines.$$server.$${server}_fields $$folder/*.whl; \
	done
	git diff --exit-code -- 'tests/engines/*/*_fields.json'

# Only looked at: nothing of a wheel is installed or run.
WHEELS := areal=areal==1.0.4 art=openpipe-art==0.5.18 verl=verl==0.9.1
public-names: $(READY)
	rm -rf build/wheels
	set -e; for each in $(WHEELS); do \
	  family=$${each%%=*}; folder=build/wheels/$$family; \
	  $(BIN)/python -m pip download --quiet --no-deps --only-binary :all: --ignore-requires-python -d $$folder "$${each#*=}"; \
	  $(BIN)/python -m zipfile -e $$folder/*.whl $$folder; \
	  $(BIN)/python -m tests.compat.public $$family $$folder/$$family; \
	done

# The page is committed as it is built, so that nobody who installs or watches needs node.
WEB := web/node_modules/.package-lock.json
$(WEB): web/package.json web/package-lock.json
	cd web && npm ci --silent

web: $(WEB)
	cd web && npm run --silent check && npm run --silent build

check-web: $(WEB)
	cd web && npm run --silent check && npm run --silent build -- --check

# The pages lie in build/pages as in the repository, so that their links hold.
DOCS  := .docs
PAGES := README.md README.zh.md CHANGELOG.md CONTRIBUTING.md docs/*.md docs/*.png docs/images/*.png recipes/*/README.md recipes/*/*.yaml
docs: $(DOCS)/.ready
	rm -rf build/pages build/site && mkdir -p build/pages/assets
	cp --parents $(PAGES) build/pages
	cp docs/site/iframe-worker.js build/pages/assets
	$(DOCS)/bin/python docs/site/reference.py build/pages/docs/reference.md
	SITE_NAME="Ludus $$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)" NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --config-file docs/site/mkdocs.yml

check-docs: docs $(READY)
	$(CHROMIUM)
	$(PYTEST) tests/docs/site_in_browser.py

$(DOCS)/.ready: docs/site/requirements.txt
	rm -rf $(DOCS)
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r $<
	touch $@

setup: $(READY)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

check: $(READY)
	$(BIN)/mypy

bench: $(READY)
	$(BIN)/ludus models get smollm2-135m
	$(BIN)/ludus bench sample --vs transformers
	$(BIN)/ludus bench train --vs transformers
	$(BIN)/ludus bench train --vs transformers --work group
	$(BIN)/ludus bench step
	$(BIN)/ludus bench publish --vs reload

# The stamp is younger than what it was made from, so a changed pin or dependency sets up again.
$(READY): pyproject.toml constraints.txt $(wildcard ludus/kernels/*.cpp ludus/kernels/*.h)
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Ludus needs Python 3.11 or newer; try: make PYTHON=python3.12")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --upgrade-strategy only-if-needed torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	$(BIN)/python -m ludus.kernels.build
	touch $@

.frameworks/%/.ready: tests/frameworks/%/requirements.txt
	rm -rf $(@D)
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r $<
	touch $@

clean:
	rm -rf $(VENV) $(DOCS) .audit .card-env .frameworks web/node_modules build *.egg-info
