# Thin front door; the work is in .ci/. Every target first sets up what it needs: Debian packages
# (cmake/packages.txt), a virtual environment in .venv with PyTorch, and the wheel built and installed there.
# What is up to date is left alone: a second `make demo` uses no network.
#
# TORCH holds pip's arguments for PyTorch. Hora needs only the CPU build; where plain pip would fetch the much
# larger CUDA build, add PyTorch's CPU index, as pytorch.org shows it for your system:
#   make demo TORCH="torch==2.13.0 --index-url <PyTorch's CPU index>"
# Any PyTorch from 2.0 will do: make demo TORCH="torch==2.5.1"
TORCH ?= torch==2.13.0
PYTHON ?= python3
BENCH_ARGS ?=
export TORCH PYTHON

.PHONY: demo test chaos bench bench-gradients bench-network format lint sanitize clean distclean

demo:
	@.ci/setup build
	@PATH="$(CURDIR)/.venv/bin:$$PATH" horarun -np 2 python examples/torch_digits.py

test:
	@.ci/setup build test
	@.ci/test

# Hundreds of kills through the real launcher; minutes, so a stage of its own.
chaos:
	@.ci/setup build
	@.venv/bin/python tests/run_tests.py --pytest -m chaos tests/chaos

bench:
	@.ci/setup build bench
	@.ci/bench allreduce.py $(BENCH_ARGS)
	@.ci/bench idle.py

# A training step that exchanges ResNet-50's gradients, beside PyTorch's own ways.
bench-gradients:
	@.ci/setup build bench
	@.ci/bench gradients.py $(BENCH_ARGS)

# Between hosts: network namespaces with shaped links, so it takes root.
bench-network:
	@.ci/setup build bench
	@.ci/bench network.py $(BENCH_ARGS)

lint:
	@.ci/setup build lint
	@.ci/lint

format:
	@.ci/setup build lint
	@.ci/format

sanitize:
	@.ci/setup build
	@.ci/sanitize

clean:
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache

distclean: clean
	rm -rf .venv
