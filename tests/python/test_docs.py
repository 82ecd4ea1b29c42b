"""What the documentation lists is what the programs know."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from support.launching import LIMIT_S, find_horarun

CONFIGURATION = Path(__file__).resolve().parents[2] / "docs" / "configuration.md"

Knob = tuple[str, str, str]


def printed_knobs(text: str) -> list[Knob]:
    """Name, default and meaning of the knobs in the output of ``horarun --help``."""
    rows = re.findall(r"^  (HORA_\w+) +(.*) \[(.*)\]$", text, re.MULTILINE)
    return [(name, default, meaning) for name, meaning, default in rows]


def documented_knobs(text: str) -> list[Knob]:
    """Name, default and meaning in the rows of the table under the heading "Knobs"."""
    section = text.partition("\n## Knobs\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(HORA_\w+)` \|(.*)\|(.*)\|$", section, re.MULTILINE)
    return [(name, default.strip(), meaning.strip()) for name, default, meaning in rows]


def test_the_table_of_knobs_is_the_one_that_horarun_prints() -> None:
    done = subprocess.run(
        [find_horarun(), "--help"], capture_output=True, text=True, timeout=LIMIT_S, check=True
    )
    # The knobs are the last part of the text: each line of it must be understood.
    lines = done.stdout.partition("Environment variables")[2].strip().splitlines()[1:]
    printed = printed_knobs(done.stdout)
    assert len(printed) == len(lines) > 0
    assert documented_knobs(CONFIGURATION.read_text()) == printed


def test_a_changed_row_is_seen() -> None:
    knob = ("HORA_A", "1", "What it does.")
    assert printed_knobs("  HORA_A   What it does. [1]\n") == [knob]
    assert documented_knobs("\n## Knobs\n\n| `HORA_A` | 1 | What it does. |\n") == [knob]
    assert documented_knobs("\n## Knobs\n\n| `HORA_A` | 2 | What it does. |\n") != [knob]
    assert documented_knobs("\n## Knobs\n\n## Others\n| `HORA_A` | 1 | What it does. |\n") == []
