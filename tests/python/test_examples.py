"""The examples do what they say, on any number of ranks."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.mark.parametrize("size", [1, 2, 4])
def test_digits_are_learnt(run_ranks: Callable[..., Any], size: int) -> None:
    job = run_ranks(size, EXAMPLES / "torch_digits.py", "--require-accuracy", "97", timeout=240)
    assert job.status == 0, job.output
    accuracy = re.search(r"test accuracy ([\d.]+) %", job.output)
    assert accuracy is not None
    assert float(accuracy.group(1)) >= 97


def test_a_missed_accuracy_is_a_failure(run_ranks: Callable[..., Any]) -> None:
    job = run_ranks(
        1, EXAMPLES / "torch_digits.py", "--epochs", "1", "--require-accuracy", "101", timeout=120
    )
    assert job.status == 1, job.output


SHORT = ["--steps", "30", "--context", "64", "--layers", "2", "--width", "64", "--write", "20"]


@pytest.mark.parametrize(("size", "compression"), [(1, "none"), (2, "fp16"), (3, "int8")])
def test_a_decoder_learns_the_same_on_any_number_of_ranks(
    run_ranks: Callable[..., Any], size: int, compression: str
) -> None:
    # An untrained model needs 7 bits for each of 128 characters.
    script = EXAMPLES / "torch_char_transformer.py"
    job = run_ranks(
        size, script, *SHORT, "--compression", compression, "--require-loss", "5", timeout=240
    )
    assert job.status == 0, job.output
    assert f"{size} rank(s)  compression {compression}" in job.output
    assert "tokens/s" in job.output


def test_an_unknown_compression_is_refused_with_the_names_of_those_that_are(
    run_ranks: Callable[..., Any],
) -> None:
    script = EXAMPLES / "torch_char_transformer.py"
    job = run_ranks(2, script, *SHORT, "--compression", "magic", timeout=120)
    assert job.status != 0
    assert "--compression magic: there are none, fp16" in job.output


def test_numpy_allreduce(run_ranks: Callable[..., Any]) -> None:
    job = run_ranks(3, EXAMPLES / "numpy_allreduce.py", timeout=240)
    assert job.status == 0, job.output
    assert job.output.count("all together [3. 3. 3. 3.]") == 3
