"""What the installed wheel contains, shows and needs. Nothing is built here."""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

# Libraries that every system of the wheel's platform tag has.
SYSTEM_LIBRARIES = re.compile(
    r"(libc|libm|libdl|librt|libpthread|libgcc_s|libstdc\+\+|ld-linux.*)\.so\.\d+"
)


@pytest.fixture(scope="module")
def installed() -> dict[str, Path]:
    """The installed files of the distribution, by their names in the wheel."""
    try:
        files = importlib.metadata.files("hora") or []
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("hora is not installed")
    return {str(file): Path(str(file.locate())) for file in files}


def file_named(installed: dict[str, Path], pattern: str) -> Path:
    found = [path for name, path in installed.items() if re.fullmatch(pattern, name)]
    assert len(found) == 1, f"{pattern}: {found}"
    return found[0]


def output_of(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def needed_libraries(program: Path) -> set[str]:
    listing = output_of("readelf", "--dynamic", program)
    return set(re.findall(r"\(NEEDED\).*\[(.+)\]", listing))


def test_extension_exports_its_entry_point_only(installed: dict[str, Path]) -> None:
    extension = file_named(installed, r"hora/_core\.[\w-]+\.so")
    symbols = output_of("nm", "-D", "--defined-only", extension).split("\n")
    assert [line.split()[-1] for line in symbols if line] == ["PyInit__core"]


@pytest.mark.parametrize("name", [r"hora/_core\.[\w-]+\.so", r"hora/bin/horarun"])
def test_binaries_need_system_libraries_and_bundled_ones(
    installed: dict[str, Path], name: str
) -> None:
    bundled = {Path(file).name for file in installed if file.startswith("hora/lib/")}
    needed = needed_libraries(file_named(installed, name)) - bundled
    assert {library for library in needed if not SYSTEM_LIBRARIES.fullmatch(library)} == set()


def test_wheel_passes_auditwheel(installed: dict[str, Path], tmp_path: Path) -> None:
    auditwheel = shutil.which("auditwheel", path=str(Path(sys.executable).parent))
    if auditwheel is None:
        pytest.skip("auditwheel is not installed")
    tags = re.findall(r"^Tag: (\S+)", file_named(installed, r"hora-.*/WHEEL").read_text(), re.M)
    version = importlib.metadata.version("hora")
    packed = {n: p for n, p in installed.items() if n.startswith("hora") and ".pyc" not in n}
    wheel = tmp_path / f"hora-{version}-{tags[0]}.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, path in packed.items():
            if not name.endswith("/RECORD"):
                archive.write(path, name)
        # Installing added files outside of the wheel's own folders, such as bin/horarun.
        archive.writestr(f"hora-{version}.dist-info/RECORD", "".join(f"{n},,\n" for n in packed))
    report = " ".join(output_of(auditwheel, "show", wheel).split())
    assert re.search(r'following platform tag: "manylinux_2_\d+_\w+"', report), report


def test_wheel_is_complete(installed: dict[str, Path]) -> None:
    for name in ("hora/__init__.py", "hora/py.typed", "hora/bin/horarun"):
        assert name in installed
    assert output_of(file_named(installed, r"hora/bin/horarun"), "--help")
    assert output_of(Path(sys.executable).parent / "horarun", "--help")


def test_numpy_is_the_only_requirement() -> None:
    requirements = importlib.metadata.requires("hora") or []
    always = [line for line in requirements if "extra ==" not in line]
    assert [re.split(r"[<>=! ]", line)[0] for line in always] == ["numpy"]
