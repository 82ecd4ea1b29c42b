"""Runs clang-tidy over the product's sources that changed since it last agreed.

A source is checked again when it, any header of the project or the configuration changed: its
verdict is kept under the hash of those. The compile commands are gcc's; flags that clang does not
know are dropped.


Usage: clang_tidy.py BUILD_DIRECTORY (with compile_commands.json)
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
ROOMS = ("runtime", "ops", "compress", "elastic", "launcher")
# gcc's own flags, and its warnings: clang-tidy is here for the checks of .clang-tidy.
DROPPED = ("-fno-gnu-unique", "-W")
FILE_LIMIT_S = 240


def clang_commands(build: Path) -> dict[str, dict[str, str]]:
    """Compile commands by source path from the root, fit for clang."""
    commands: dict[str, dict[str, str]] = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        path = Path(entry["directory"], entry["file"]).resolve()
        if not path.is_relative_to(ROOT):
            continue
        name = path.relative_to(ROOT).as_posix()
        words = [word for word in shlex.split(entry["command"]) if not word.startswith(DROPPED)]
        if "ccache" in words[0]:
            words = words[1:]
        if name.split("/")[0] in ROOMS:
            commands[name] = {**entry, "command": shlex.join(words)}
    return commands


def digest_of(*paths: Path) -> bytes:
    """A hash of the contents of files."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.read_bytes())
    return digest.digest()


def main() -> int:
    """Check; 0 if clang-tidy has nothing to say."""
    build = (ROOT / sys.argv[1]).resolve()
    commands = clang_commands(build)
    if not commands:
        print(f"clang_tidy: no sources in {build}/compile_commands.json", file=sys.stderr)
        return 2
    folder = build.parent / "clang-tidy"
    (folder / "clean").mkdir(parents=True, exist_ok=True)
    (folder / "compile_commands.json").write_text(json.dumps(list(commands.values())))
    headers = sorted(header for room in ROOMS for header in (ROOT / room).rglob("*.h"))
    common = digest_of(ROOT / ".clang-tidy", *headers)

    def check(name: str) -> str | None:
        key = hashlib.sha256(common + digest_of(ROOT / name) + name.encode()).hexdigest()
        mark = folder / "clean" / key
        if mark.exists():
            return None
        command = ["clang-tidy", "--quiet", "-p", str(folder), str(ROOT / name)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=FILE_LIMIT_S)
        except subprocess.TimeoutExpired:
            return f"{name}: clang-tidy took longer than {FILE_LIMIT_S} s"
        if done.returncode == 0 and "warning:" not in done.stdout:
            mark.touch()
            return None
        return done.stdout.strip() or done.stderr.strip()

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        problems = [problem for problem in pool.map(check, sorted(commands)) if problem]
    for problem in problems:
        print(problem)
    print(f"clang-tidy: {len(commands)} sources, {len(problems)} with complaints")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
