# Every target does its own set-up: `make demo` and `make test` work on a fresh Debian or Ubuntu
# machine as root with Python >= 3.11, git and make.

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 /usr/bin/python3; do \
	command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& { echo $$p; break; }; done)
BIN := .venv/bin
SYSTEM := crun ripgrep e2fsprogs gcc libc6-dev
# What tests run inside sandboxes: programs that trace others or nest.
SYSTEM_DEV := strace gdb bubblewrap
LAUNCHER := src/stockade/_sandbox/guest
SOURCES := src tests benchmarks docs hatch_build.py

.PHONY: setup setup-dev demo test check format bench soak vectors schemas clean

setup: build/.setup
setup-dev: build/.setup-dev

build/.system: Makefile
	@mkdir -p build
	@sh setup/system.sh $(SYSTEM)
	@touch $@

build/.setup: build/.system pyproject.toml requirements/runtime.txt $(wildcard sandbox/*.[ch]) sandbox/Makefile hatch_build.py
	@test -n "$(PYTHON)" || { echo "stockade: Python 3.11 or newer is needed" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/pip install -q --disable-pip-version-check --require-hashes -r requirements/build.txt
	@$(BIN)/pip install -q --disable-pip-version-check --require-hashes -r requirements/runtime.txt
	@$(BIN)/pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

build/.setup-dev: build/.setup requirements/dev.txt Makefile
	@sh setup/system.sh $(SYSTEM_DEV)
	@$(BIN)/pip install -q --disable-pip-version-check --require-hashes -r requirements/dev.txt
	@touch $@

demo: build/.setup
	@$(BIN)/python demo/demo.py

# Two at a time: most tests wait for something. A file stays in one process, with its fixtures.
test: build/.setup-dev
	$(BIN)/pytest -n 2 --dist loadfile

check: build/.setup-dev
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/mypy src tests benchmarks
	$(BIN)/pytest tests/repo

format: build/.setup-dev
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix $(SOURCES)

# Peers of one group of figures. What can't be installed is reported as missing.
build/.setup-bench: build/.setup-dev requirements/bench.txt
	@$(BIN)/pip install -q --disable-pip-version-check --require-hashes -r requirements/bench.txt \
		&& touch $@ || echo "stockade: measuring without the libraries of requirements/bench.in" >&2

bench: build/.setup-bench
	$(BIN)/python -m benchmarks

# SEED=… repeats a run; a failure names its seed and case.
soak: build/.setup-dev
	$(BIN)/python -m tests.soak $(if $(SEED),--seed $(SEED))
	$(BIN)/python -m tests.soak.walls $(if $(SEED),--seed $(SEED))
	$(BIN)/python -m tests.faults.killed_under_load $(if $(SEED),--seed $(SEED))

vectors: build/.setup-dev
	$(BIN)/python tests/vectors/make_vectors.py
	$(BIN)/python tests/vectors/make_claim_vectors.py

schemas: build/.setup-dev
	$(BIN)/python docs/schema/make_schemas.py
	$(BIN)/python docs/make_reference.py

lock: build/.setup-dev
	$(BIN)/pip-compile -q --generate-hashes --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --strip-extras --allow-unsafe -o requirements/build.txt requirements/build.in
	$(BIN)/pip-compile -q --generate-hashes --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --strip-extras -o requirements/runtime.txt pyproject.toml
	$(BIN)/pip-compile -q --generate-hashes --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --strip-extras --extra trace -c requirements/runtime.txt -o requirements/trace.txt pyproject.toml
	$(BIN)/pip-compile -q --generate-hashes --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --strip-extras --allow-unsafe -o requirements/dev.txt requirements/dev.in
	$(BIN)/pip-compile -q --generate-hashes --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --strip-extras -o requirements/bench.txt requirements/bench.in

clean:
	rm -rf build dist .venv src/stockade/_sandbox
	$(MAKE) -C sandbox clean
