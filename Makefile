# make demo    build the package in .venv and generate text with a small model
# make test    run every check: format, lint, types, layering, tests
# make venv    build the package again after a change in csrc or metal
# make mutate  run the kernels' tests on shaders with one mistake each, hours (FAMILIES="route hyper")
# make seeded-bugs   break shaders on purpose, one place at a time: a test must turn red
# make fuzz    try damaged files and blocks for a minute (SECONDS=3600 SEED=1)
# make soak    many clients on one engine, checked token by token (SECONDS=1800 SEED=1)
# make full-size     load and run a sparse file of V4-Flash's real size, 80.8 GiB
# make tools   install what the tests and checks need
# make wheel-macos   build a wheel for arm64 macOS in dist, on Linux, and check it
# The other targets are steps of these, or write files that they check.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# On Linux MLX has no default backend; on macOS it brings its own.
BACKEND := $(if $(filter Darwin,$(shell uname -s)),,cpu)
# The tests run the Metal kernels on a simulator, where its assembly is this machine's.
SIMULATOR := $(filter Linux-x86_64,$(shell uname -s)-$(shell uname -m))
NATIVE := pyproject.toml CMakeLists.txt $(wildcard csrc/* metal/*.* mslsim/*/*.cpp mslsim/*/*.h)
CPP := $(shell git ls-files '*.cpp' '*.h')
METAL := $(wildcard metal/*.metal)
FUZZ := build/fuzz
SECONDS := 60
SEED := 0

.PHONY: help venv tools demo test lint format types layers stub full-size seeded-bugs mutate fuzz soak \
	wheel-macos check-install bench clean

help:
	@sed -n 's/^# make/make/p' Makefile

$(BIN)/python:
	@echo "== creating $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "mlx-dsv4 needs Python 3.11 or later: make PYTHON=python3.12 ..."; exit 1; }
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --upgrade pip

$(VENV)/.package: $(NATIVE) | $(BIN)/python
	@echo "== building and installing mlx-dsv4 (some minutes)"
	@$(BIN)/python -m pip install --quiet --editable '.$(if $(BACKEND),[$(BACKEND)])' \
		$(if $(SIMULATOR),--config-settings=cmake.define.DSV4_SIMULATOR=ON)
	@touch $@

# The extras' requirements alone, so that the package is not built a second time.
$(VENV)/.tools: pyproject.toml | $(VENV)/.package
	@echo "== installing the test tools and the oracles (torch, transformers, llama.cpp)"
	@$(BIN)/python -c 'import tomllib; \
		extras = tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]; \
		print(*extras["test"], *extras["oracle"], *extras["dev"], sep="\n")' > $(VENV)/tools.txt
	@$(BIN)/python -m pip install --quiet --requirement $(VENV)/tools.txt
	@touch $@

venv: $(VENV)/.package
tools: $(VENV)/.tools

demo: $(VENV)/.package
	@$(BIN)/mlx-dsv4 doctor
	@echo "== a small DeepSeek-V4 that has read Python's standard library (docs/demo-model.md)"
	$(BIN)/mlx-dsv4 generate --demo --prompt "import unittest" --max-tokens 164 --temperature 0

test: lint types layers
	@echo "== tests"
	@$(BIN)/python -m pytest -q

mutate: $(VENV)/.tools
	@$(BIN)/python -m mslsim.mutate $(FAMILIES)

lint: $(VENV)/.tools
	@echo "== format and lint"
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/ruff check --quiet .
	@$(BIN)/clang-format --dry-run --Werror $(CPP)
	@for file in $(METAL); do \
		$(BIN)/clang-format --assume-filename=$$file.cpp < $$file | diff -u $$file - || exit 1; done
	@echo "== shaders, by the rules of MSL 3.1 and 4.1"
	@$(BIN)/python metal/lint/check_shaders.py $(METAL)

format: $(VENV)/.tools
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix .
	@$(BIN)/clang-format -i $(CPP) && for file in $(METAL); do \
		$(BIN)/clang-format --assume-filename=$$file.cpp < $$file > build/formatted && \
		cp build/formatted $$file; done

types: $(VENV)/.tools
	@echo "== types"
	@$(BIN)/mypy
	@$(BIN)/mypy macos metal/lint metal/embed_metal.py

layers: $(VENV)/.tools
	@echo "== layering"
	@$(BIN)/lint-imports

stub: $(VENV)/.tools
	@$(BIN)/python tests/write_stub.py python/mlx_dsv4/_ext.pyi

full-size: $(VENV)/.tools
	@$(BIN)/pytest -m full_size -s -q tests/model/test_full_size.py

seeded-bugs: $(VENV)/.tools
	@$(BIN)/python tests/run_seeded_bugs.py

# On Linux: files are read under limits that other systems do not have.
fuzz: $(VENV)/.tools
	@echo "== building the CPU kernels with sanitizers"
	@mkdir -p $(FUZZ)
	@$(BIN)/cmake -S . -B $(FUZZ)/cmake -G Ninja -DDSV4_FUZZ=ON -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python \
		-DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja > $(FUZZ)/cmake.log || { cat $(FUZZ)/cmake.log; exit 1; }
	@$(BIN)/cmake --build $(FUZZ)/cmake --target fuzz_blocks > $(FUZZ)/build.log || { cat $(FUZZ)/build.log; exit 1; }
	@echo "== damaged blocks, then damaged files: $(SECONDS) seconds"
	@$(FUZZ)/fuzz_blocks $(SEED) $$(($(SECONDS) / 3))
	@$(BIN)/python -m fuzz.files --seed $(SEED) --seconds $$(($(SECONDS) * 2 / 3))

soak: $(VENV)/.tools
	@PYTHONPATH=.:tests/model:tests $(BIN)/python tests/engine/soak.py --seconds $(SECONDS) --seed $(SEED)

# Needs clang 19 for macOS; without it the script says what to install.
wheel-macos: $(VENV)/.tools
	@echo "== building a wheel for arm64 macOS against MLX's own library (some minutes)"
	@$(BIN)/python macos/build_wheel.py

# From the source distribution, in an environment of its own, as pip gives it to a user.
check-install: $(VENV)/.tools
	@echo "== building the source distribution, installing it into a clean environment"
	@rm -rf build/clean build/sdist && $(PYTHON) -m venv build/clean
	@$(BIN)/python -c 'from scikit_build_core.build import build_sdist; build_sdist("build/sdist")'
	@build/clean/bin/python -m pip install --quiet \
		"$$(echo build/sdist/*.tar.gz)$(if $(BACKEND),[$(BACKEND)])"
	@cd build && clean/bin/mlx-dsv4 doctor && \
		clean/bin/mlx-dsv4 generate --demo --prompt "import" --max-tokens 8 --temperature 0

bench: $(VENV)/.package
	@$(BIN)/mlx-dsv4 bench kernels
	@for file in benchmarks/bench_*.py; do echo "== $$file"; $(BIN)/python $$file || exit 1; done

clean:
	rm -rf $(VENV) build dist
