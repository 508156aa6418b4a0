# Every target does its own set-up. A fresh clone needs Python >= 3.10, g++ and make, nothing more.

PYTHON ?= python3
# One release for everybody, so that numbers compare. Where pip also sees a CPU build (2.13.0+cpu),
# it takes that one.
TORCH ?= torch==2.13.0
# ON turns compiler warnings into errors.
WERROR ?= OFF
# Passed on to what runs: make test ARGS="-k lstm", make bench ARGS="--suite training".
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --disable-pip-version-check
# Folders too: their time changes when a file comes or goes.
NATIVE_SOURCES := CMakeLists.txt pyproject.toml $(shell find csrc)
CXX_FILES = $(shell find csrc tests/native examples/deploy -name '*.h' -o -name '*.inc' -o -name '*.cpp')
NATIVE_TEST_FLAGS := -DRNNPACK_NATIVE=OFF -DRNNPACK_BUILD_TESTS=ON -DRNNPACK_WERROR=$(WERROR)

# CMake must find ninja, and what runs must find its peers.
export PATH := $(CURDIR)/$(BIN):$(PATH)

.PHONY: build test native-test test-aarch64 demo bench lint format clean

build: $(VENV)/.installed-dev

test: build native-test $(VENV)/.demo-models
	$(BIN)/python -m pytest $(ARGS)

# Memory errors and undefined behaviour in everything below torch; data races in the team of threads.
native-test: $(VENV)/.torch
	$(BIN)/cmake -S . -B build/native-address -G Ninja $(NATIVE_TEST_FLAGS) -DRNNPACK_SANITIZE=address
	$(BIN)/cmake --build build/native-address
	$(BIN)/ctest --test-dir build/native-address --output-on-failure --no-tests=error
	$(BIN)/cmake -S . -B build/native-thread -G Ninja $(NATIVE_TEST_FLAGS) -DRNNPACK_SANITIZE=thread \
		-DRNNPACK_TEAM_STD_THREAD=ON
	$(BIN)/cmake --build build/native-thread
	$(BIN)/ctest --test-dir build/native-thread --output-on-failure --no-tests=error

# The same programs as an ARM processor would run them, emulated: minutes, and no part of `test`.
test-aarch64: $(VENV)/.torch build/aarch64-tools/.installed
	mkdir -p build/native-aarch64  # CMake's trials of this compiler leave a file where they run
	cd build/native-aarch64 && cmake -S $(CURDIR) -B . -G Ninja $(NATIVE_TEST_FLAGS) \
		-DRNNPACK_TEAM_STD_THREAD=ON -DRNNPACK_PYTHON=$(CURDIR)/build/aarch64-tools/bin/python \
		-DCMAKE_TOOLCHAIN_FILE=$(CURDIR)/tests/native/aarch64/toolchain.cmake
	$(BIN)/cmake --build build/native-aarch64
	$(BIN)/ctest --test-dir build/native-aarch64 --output-on-failure --no-tests=error

demo: $(VENV)/.installed-demo $(VENV)/.demo-models
	$(BIN)/python examples/demo/run.py $(ARGS)

bench: $(VENV)/.installed-bench
	$(BIN)/rnnpack bench $(ARGS)

lint: build
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror $(CXX_FILES)

format: build
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CXX_FILES)

# The environment stays; the next call builds anew.
clean:
	rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis $(VENV)/.installed-*

# --- Set-up ---------------------------------------------------------------------------------------

$(VENV)/.torch: Makefile
	$(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) $(TORCH)
	$(PIP_INSTALL) cmake ninja 'scikit-build-core>=0.11'
	touch $@

# Apart from the rest: the emulator pins what it needs.
build/aarch64-tools/.installed: tests/native/aarch64/requirements.txt
	$(PYTHON) -m venv build/aarch64-tools
	build/aarch64-tools/bin/python -m pip install --disable-pip-version-check --requirement $<
	touch $@

# The package with one of its extras, editable: only native sources make it necessary again. Without
# isolation, so that it is compiled against the torch above.
$(VENV)/.installed-%: $(VENV)/.torch $(NATIVE_SOURCES)
	$(PIP_INSTALL) --no-build-isolation -Ccmake.define.RNNPACK_WERROR=$(WERROR) --editable '.[$*]'
	touch $@

# For the files inside them: what these packages would pull in is not needed, and large.
$(VENV)/.demo-models: $(VENV)/.torch examples/demo/requirements.txt
	$(PIP_INSTALL) --no-deps --requirement examples/demo/requirements.txt
	touch $@
