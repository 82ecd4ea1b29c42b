"""The house rules hold here, and each of them can fail."""

from __future__ import annotations

import pytest
import tidy

ESSAY = "// An idea.\n// Its model.\n// Its owner.\n"
# Assembled, so that this file does not contain what it forbids.
UNFINISHED = "TO" + "DO"
SOMEBODYS = "/ho" + "me/somebody/hora"


def rules_that_complain(tree: dict[str, str]) -> set[str]:
    return {rule.__name__ for rule in tidy.RULES if list(rule(tree))}


def cxx(body: str, path: str = "ops/a.cc") -> dict[str, str]:
    """A tree that is tidy but for `body`."""
    folder, _, name = path.rpartition("/")
    return {path: ESSAY + body, f"{folder}/CMakeLists.txt": f"hora_library(x SOURCES {name})\n"}


def test_the_repository_is_tidy() -> None:
    assert tidy.complaints(tidy.read_tree(tidy.ROOT)) == []


def test_a_tidy_file_is_left_alone() -> None:
    tree = cxx('#include <vector>\n\n#include "runtime/base/result.h"\n\nint f();\n')
    assert rules_that_complain(tree) == set()


@pytest.mark.parametrize(
    ("rule", "tree"),
    [
        ("check_includes", cxx('#include "runtime/runtime.h"\n', "runtime/base/a.cc")),
        ("check_includes", cxx('#include "elastic/world.h"\n', "ops/transport/a.cc")),
        ("check_includes", cxx('#include "ops/executor.h"\n', "ops/algorithms/a.cc")),
        ("check_includes", cxx('#include "ops/executor.h"\n', "elastic/a.cc")),
        ("check_includes", cxx('#include "ops/encoded_merge.h"\n', "runtime/a.cc")),
        ("check_includes", cxx('#include "runtime/request.h"\n', "python/bindings/a.cc")),
        ("check_includes", cxx('#include "runtime/runtime.h"\n', "launcher/a.cc")),
        ("check_includes", cxx('#include "a.h"\n')),
        ("check_includes", cxx('#include "tests/support/a.h"\n')),
        ("check_heavy_headers", cxx("#include <boost/asio/io_context.hpp>\n")),
        ("check_heavy_headers", cxx("#include <pybind11/pybind11.h>\n")),
        ("check_heavy_headers", cxx("#include <CLI/CLI.hpp>\n")),
        ("check_heavy_headers", cxx("#include <spdlog/spdlog.h>\n")),
        ("check_heavy_headers", cxx("#include <sodium.h>\n")),
        ("check_length", cxx("int a;\n" * 600)),
        ("check_length", cxx("// " + "x" * 98 + "\n")),
        ("check_length", {"python/hora/a.py": "#" * 101}),
        ("check_essay", {**cxx(""), "ops/a.cc": "// One line.\nint a;\n"}),
        ("check_essay", {"ops/a.h": "// One line.\nint a();\n"}),
        ("check_cmake_lists", {**cxx(""), "ops/CMakeLists.txt": "# a.cc is only mentioned\n"}),
        ("check_getenv", cxx('auto a = std::getenv("A");\n')),
        ("check_unfinished", cxx(f"// {UNFINISHED}: later\n")),
        ("check_unfinished", {"docs/a.md": f"{UNFINISHED}\n"}),
        ("check_machine_paths", cxx(f'auto a = "{SOMEBODYS}";\n')),
        ("check_machine_paths", {"README.md": "see py" + "pi.org\n"}),
        ("check_detach", cxx("std::thread(f).detach();\n")),
        ("check_sleeps", cxx("std::this_thread::sleep_for(1s);\n", "tests/ops/a.cc")),
        ("check_using_namespace", cxx("using namespace std;\n")),
    ],
)
def test_a_rule_fails_on_what_it_forbids(rule: str, tree: dict[str, str]) -> None:
    assert rules_that_complain(tree) == {rule}


def test_every_rule_is_shown_to_fail() -> None:
    marks = test_a_rule_fails_on_what_it_forbids.pytestmark
    shown = {rule for mark in marks for rule, _ in mark.args[1]}
    assert shown == {rule.__name__ for rule in tidy.RULES}


def test_the_configuration_may_read_the_environment() -> None:
    tree = cxx('auto a = std::getenv("A");\n', "runtime/base/config.cc")
    assert rules_that_complain(tree) == set()


def test_header_and_source_share_one_essay() -> None:
    for header, source in ((ESSAY, ""), ("", ESSAY)):
        tree = {**cxx(""), "ops/a.cc": source, "ops/a.h": header}
        assert rules_that_complain(tree) == set()


def test_a_complaint_names_file_and_line() -> None:
    tree = cxx("\nusing namespace std;\n")
    assert tidy.complaints(tree) == ["ops/a.cc:5: using namespace at file scope"]
