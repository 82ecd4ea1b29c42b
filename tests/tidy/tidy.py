"""House rules that a machine can check; the others are for review.

Every rule is a function from a tree, a mapping of paths to texts, to complaints
``path:line: what``. Rules read no disk, so ``test_tidy.py`` can show for each of them that it
fails on what it forbids.

Run as a program it checks the files of this repository and prints the complaints.
"""

from __future__ import annotations

import itertools
import os
import posixpath
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Callable

Tree = Mapping[str, str]
Rule = Callable[[Tree], Iterator[str]]

ROOT = Path(__file__).resolve().parent.parent.parent
PRODUCT = ("runtime", "ops", "compress", "elastic", "python", "launcher")
SKIPPED_FOLDERS = {"build", "dist", "wheelhouse", "__pycache__", "node_modules"}
TEXT_NAMES = {"CMakeLists.txt", "Makefile", ".clang-format", ".clang-tidy", ".gitignore"}
TEXT_ENDINGS = (".h", ".cc", ".py", ".pyi", ".cmake", ".fbs", ".md", ".toml", ".txt", ".yml")

MAX_LINES = 600
MAX_COLUMNS = 100
MIN_ESSAY_LINES = 3

# Who may include whom: docs/architecture.md, section "Rooms". The room of a file is the longest key
# that its path starts with; a room may include itself and what stands beside it (folders end in a
# slash).
ROOMS: dict[str, tuple[str, ...]] = {
    "runtime/base/": (),
    "ops/transport/": ("runtime/base/",),
    "compress/": ("runtime/base/",),
    "ops/algorithms/": ("runtime/base/", "ops/schedule.h", "ops/topology.h"),
    "ops/cuda/": ("runtime/base/",),
    "ops/": (
        "runtime/base/",
        "ops/transport/",
        "ops/algorithms/",
        "compress/codec.h",
        "compress/residual.h",
    ),
    # A Session makes its links: it knows the kinds there are.
    "elastic/": (
        "runtime/base/",
        "ops/transport/transport.h",
        "ops/transport/shm.h",
        "ops/transport/tcp.h",
    ),
    "runtime/": (
        "runtime/base/",
        "ops/transport/transport.h",
        "compress/codec.h",
        "compress/residual.h",
        "ops/schedule.h",
        "ops/executor.h",
        "ops/collective.h",
        "ops/adasum.h",
        "ops/reduce.h",
        "ops/topology.h",
        "ops/algorithms/algorithms.h",
        "elastic/",
    ),
    "python/": ("runtime/base/", "runtime/runtime.h"),
    "launcher/": ("runtime/base/", "elastic/"),
}

# Headers that the build makes, beside the source that includes them.
GENERATED_HEADERS = {"wire_generated.h"}

# Headers that cost seconds a unit or drag a library in, and the adapters that may include them.
HEAVY_HEADERS: dict[str, tuple[str, ...]] = {
    r"boost/asio": ("elastic/control.cc", "elastic/rendezvous_server.cc"),
    r"pybind11/": ("python/bindings/",),
    r"CLI/": ("launcher/options.cc",),
    r"spdlog/": ("runtime/base/log.cc",),
    r"sodium": ("runtime/base/handshake.cc", "runtime/base/ids.cc", "elastic/job.cc"),
    r"hwy/": ("ops/reduce", "compress/", "runtime/base/float_"),
    r"flatbuffers/": ("runtime/wire.cc",),
}


def is_cxx(path: str) -> bool:
    return path.endswith((".h", ".cc"))


def is_code(path: str) -> bool:
    return is_cxx(path) or path.endswith((".py", ".pyi"))


def in_product(path: str) -> bool:
    return path.split("/")[0] in PRODUCT


def room_of(path: str) -> str | None:
    """The most particular room that a path lies in."""
    return max((room for room in ROOMS if path.startswith(room)), key=len, default=None)


def matches(tree: Tree, pattern: str, chosen: Callable[[str], bool]) -> Iterator[tuple[str, str]]:
    """``path:line`` and the match of every line of the chosen files in which the pattern occurs."""
    regex = re.compile(pattern)
    for path, text in tree.items():
        if chosen(path):
            for number, line in enumerate(text.splitlines(), start=1):
                if found := regex.search(line):
                    yield f"{path}:{number}", found.group(found.lastindex or 0)


def check_includes(tree: Tree) -> Iterator[str]:
    """Includes follow the table of rooms."""
    for place, header in matches(tree, r'^\s*#\s*include "([^"]+)"', is_cxx):
        path = place.rpartition(":")[0]
        room, target = room_of(path), room_of(header)
        if room is None or room == target or header in GENERATED_HEADERS:
            continue
        if not in_product(header):
            yield f'{place}: "{header}" is not a header of the product, named from the root'
        elif not any(
            header == allowed or (allowed.endswith("/") and target == allowed)
            for allowed in ROOMS[room]
        ):
            yield f"{place}: {room} may not include {header}"


def check_heavy_headers(tree: Tree) -> Iterator[str]:
    """Heavy headers appear only in their adapters."""
    for pattern, adapters in HEAVY_HEADERS.items():
        for place, header in matches(tree, rf"^\s*#\s*include <((?:{pattern})[^>]*)>", is_cxx):
            if in_product(place) and not place.startswith(adapters):
                yield f"{place}: <{header}> belongs in {', '.join(adapters)} alone"


def check_length(tree: Tree) -> Iterator[str]:
    """No file is longer than 600 lines, no line wider than 100 columns."""
    for path, text in tree.items():
        if not is_code(path):
            continue
        lines = text.splitlines()
        if len(lines) > MAX_LINES:
            yield f"{path}:{len(lines)}: {len(lines)} lines; at most {MAX_LINES}"
        for number, line in enumerate(lines, start=1):
            if len(line) > MAX_COLUMNS:
                yield f"{path}:{number}: {len(line)} columns; at most {MAX_COLUMNS}"


def check_essay(tree: Tree) -> Iterator[str]:
    """A C++ file begins with a comment that says what its idea is; header or source for a pair."""
    essays: dict[str, int] = {}
    for path, text in tree.items():
        if is_cxx(path) and in_product(path):
            lines = itertools.takewhile(lambda line: line.startswith("//"), text.splitlines())
            stem = path.rpartition(".")[0]
            essays[stem] = max(essays.get(stem, 0), len(list(lines)))
    for path in tree:
        lines_at_top = essays.get(path.rpartition(".")[0], MIN_ESSAY_LINES)
        if is_cxx(path) and lines_at_top < MIN_ESSAY_LINES:
            found = f"{lines_at_top} lines of comment at the top"
            yield f"{path}:1: {found}; at least {MIN_ESSAY_LINES}"


def check_cmake_lists(tree: Tree) -> Iterator[str]:
    """Every .cc is a source of some target."""
    listed: set[str] = set()
    for path, text in tree.items():
        if posixpath.basename(path) == "CMakeLists.txt":
            folder = posixpath.dirname(path)
            for name in re.findall(r"[\w./-]+\.cc\b", re.sub(r"#.*", "", text)):
                listed.add(posixpath.normpath(posixpath.join(folder, name)))
    for path in tree:
        if path.endswith(".cc") and path not in listed:
            yield f"{path}:1: is in no CMakeLists.txt"


def check_getenv(tree: Tree) -> Iterator[str]:
    """The environment is read in one place."""
    for place, word in matches(tree, r"\b(?:secure_)?getenv\s*\(", is_cxx):
        if not place.startswith("runtime/base/config.cc:"):
            yield f"{place}: {word.rstrip(' (')} outside runtime/base/config.cc"


def check_unfinished(tree: Tree) -> Iterator[str]:
    """Nothing is marked as unfinished."""
    words = "|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X"))
    for place, word in matches(tree, rf"\b({words})\b", lambda path: True):
        yield f"{place}: {word}"


def check_machine_paths(tree: Tree) -> Iterator[str]:
    """No path of somebody's machine and no package server stands in the repository."""
    folders = r"(?<![\w.$}>)*])(/(?:home|root|work|opt|Users|mnt)/\w+)"
    hosts = r"\b((?:py" + r"pi|files\.pythonhosted|download\.pytorch|deb\.debian|anaconda)\.\w+)"
    for pattern in (folders, hosts):
        for place, found in matches(tree, pattern, lambda path: path != "LICENSE"):
            yield f"{place}: {found} exists on one machine or network only"


def check_detach(tree: Tree) -> Iterator[str]:
    """Every thread is joined."""
    for place, _ in matches(tree, r"\.detach\(\)", is_cxx):
        yield f"{place}: a detached thread outlives what it uses"


def check_sleeps(tree: Tree) -> Iterator[str]:
    """A C++ test waits for what it asserts, not for a while."""
    for place, word in matches(tree, r"\b(sleep_for|sleep_until|usleep|nanosleep)\b", is_cxx):
        if place.startswith("tests/") and not place.startswith("tests/bench/"):
            yield f"{place}: {word} in a test"


def check_using_namespace(tree: Tree) -> Iterator[str]:
    """No using-directive reaches past a function; a test, which nobody includes, may have one."""
    for place, _ in matches(tree, r"^using namespace\b", is_cxx):
        if in_product(place) or ".h:" in place:
            yield f"{place}: using namespace at file scope"


RULES: tuple[Rule, ...] = (
    check_includes,
    check_heavy_headers,
    check_length,
    check_essay,
    check_cmake_lists,
    check_getenv,
    check_unfinished,
    check_machine_paths,
    check_detach,
    check_sleeps,
    check_using_namespace,
)


def read_tree(root: Path) -> dict[str, str]:
    """The text files of a checkout by path from its root, without what builds leave behind."""
    tree = {}
    for folder, folders, names in os.walk(root):
        top = Path(folder) == root
        folders[:] = sorted(
            name
            for name in folders
            if name not in SKIPPED_FOLDERS
            and not (top and name.startswith("build"))
            and (name == ".ci" or not name.startswith("."))
        )
        for name in sorted(names):
            if name in TEXT_NAMES or name.endswith(TEXT_ENDINGS) or folder.endswith("/.ci"):
                path = Path(folder) / name
                tree[path.relative_to(root).as_posix()] = path.read_text(errors="replace")
    return tree


def complaints(tree: Tree) -> list[str]:
    """What every rule says about a tree."""
    return [complaint for rule in RULES for complaint in rule(tree)]


def main() -> int:
    """Check this repository; 0 if no rule complains."""
    found = complaints(read_tree(ROOT))
    for complaint in found:
        print(complaint)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
