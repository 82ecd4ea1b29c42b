"""What one rank of a test does: run functions of a file one after the other and note how each
ended.

    rank_main.py FILE DIRECTORY FUNCTION[,FUNCTION...]

Every function is called without arguments; what it returns, or the traceback of what it raised,
goes to DIRECTORY/<function>.<rank>.pickle. The first failure ends the run: ranks may be out of step
then.
"""

from __future__ import annotations

import importlib.util
import os
import pickle
import sys
import traceback
from pathlib import Path
from types import ModuleType


def load(path: Path) -> ModuleType:
    """Import a file under its own name, so that what it defines can be pickled."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def main() -> None:
    """Run the functions."""
    file, directory, functions = sys.argv[1:]
    module = load(Path(file))
    rank = os.environ.get("HORA_RANK", "0")
    for name in functions.split(","):
        try:
            outcome = (True, getattr(module, name)())
        except BaseException:
            outcome = (False, traceback.format_exc())
        with open(Path(directory) / f"{name}.{rank}.pickle", "wb") as out:
            pickle.dump(outcome, out)
        if not outcome[0]:
            sys.exit(f"{name} failed on rank {rank}:\n{outcome[1]}")


if __name__ == "__main__":
    main()
