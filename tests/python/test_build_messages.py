"""The build stops with the name of the Debian package that is missing."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


def needed_headers() -> dict[str, str]:
    """Packages by the header that the build looks for."""
    text = (ROOT / "cmake" / "HoraDependencies.cmake").read_text()
    return dict(re.findall(r"hora_need_header\((\S+) (\S+)\)", text))


def missing_packages(headers: list[str], folder: Path) -> list[str]:
    """Configure on a system that has the given headers only; what the error asks to install."""
    if shutil.which("cmake") is None:
        pytest.skip("cmake is not installed")
    for header in headers:
        file = folder / "system" / "usr" / "include" / header
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    command = ["cmake", "-S", str(ROOT), "-B", str(folder / "build"), "-DHORA_TESTS=ON"]
    command += [
        f"-DCMAKE_FIND_ROOT_PATH={folder}/system",
        "-DCMAKE_FIND_ROOT_PATH_MODE_INCLUDE=ONLY",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode != 0
    found = re.search(r"apt-get install (.*)", done.stderr)
    assert found, done.stderr
    return found.group(1).split()


def test_everything_missing_is_named_at_once(tmp_path: Path) -> None:
    (tmp_path / "system").mkdir()
    assert set(missing_packages([], tmp_path)) >= set(needed_headers().values())


def test_one_missing_package_is_named_alone(tmp_path: Path) -> None:
    headers = [header for header in needed_headers() if header != "sodium.h"]
    assert missing_packages(headers, tmp_path) == ["libsodium-dev"]


def test_the_package_list_has_all_that_the_build_needs() -> None:
    listed = (ROOT / "cmake" / "packages.txt").read_text().split()
    assert set(needed_headers().values()) - set(listed) == set()
