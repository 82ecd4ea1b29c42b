"""The console command ``horarun``: becomes the launcher program that the wheel carries.

The launcher is a C++ program; this entry point exists because a wheel can put only Python scripts
into an environment's ``bin``. It replaces itself, so signals and the exit status are the
program's own.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn


def main() -> NoReturn:
    """Replace this process by ``hora/bin/horarun`` with the same arguments."""
    program = Path(__file__).resolve().parent / "bin" / "horarun"
    try:
        os.execv(program, [str(program), *sys.argv[1:]])
    except OSError as error:
        sys.exit(
            f"horarun: cannot run {program}: {error.strerror}. The installation of hora is "
            "incomplete; install it again (pip install --force-reinstall hora)."
        )
