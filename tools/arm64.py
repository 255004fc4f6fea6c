"""Prepares a Python for ARM64 that runs on this machine under QEMU, for ``make test-arm``: ``python tools/arm64.py
FOLDER``.

``FOLDER/bin/python`` starts it and is used like the Python of a virtual environment: Weft, its dependencies and those
of its tests can be imported. The Python of Debian (or Ubuntu) and its libraries are unpacked into ``FOLDER/system``
without being installed, so no administrator's rights are needed. Required are apt-get, dpkg and QEMU's emulation of
user programs.

``ARM_SOURCES=FILE`` names a list of sources for apt-get, if this machine's have no packages for arm64.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SYSTEM_PACKAGES = ("python3", "libstdc++6")
TEST_PACKAGES = ("gguf", "hypothesis", "mpmath", "pytest", "pytest-xdist", "safetensors")

# A processor with instructions for float16 and for atomic additions, which not every ARM64 has; with QEMU's "max",
# NumPy's OpenBLAS computes wrong products.
PROCESSOR = "neoverse-n1"
# Otherwise emulated programs read this machine's file, in which LLVM finds no ARM64 processor.
CPUINFO = """\
processor\t: 0
BogoMIPS\t: 100.00
Features\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x3
CPU part\t: 0xd0c
CPU revision\t: 1

"""

APT_CONFIGURATION = """\
APT::Architecture "arm64";
APT::Architectures {{ "arm64"; }};
APT::Install-Recommends "false";
APT::Sandbox::User "";
Dir::State "{folder}";
Dir::State::status "{folder}/status";
Dir::Cache "{folder}";
"""
CHOSEN_SOURCES = """\
Dir::Etc::sourcelist "{sources}";
Dir::Etc::sourceparts "/dev/null";
"""

START = """\
#!/bin/sh
exec '{qemu}' -cpu {processor} -L '{system}' -0 '{python}' '{system}/usr/bin/python3' "$@"
"""


def program(names: tuple[str, ...], package: str) -> str:
    """The path of the first of these programs that is installed."""
    for name in names:
        path = shutil.which(name)
        if path:
            return path
    sys.exit(f"make test-arm needs {names[0]}, which the package {package} of Debian and Ubuntu has.")


def run(command: list[str], remedy: str, **environment: str) -> None:
    """Run a program; its output is shown if it fails."""
    done = subprocess.run(
        command,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode:
        sys.exit(f"{done.stdout}\n{' '.join(command)} failed.\n{remedy}")


def unpack_system(folder: Path, apt_get: str, dpkg: str) -> None:
    """Debian's Python for ARM64 and the libraries that it needs, in ``folder/system``."""
    apt = folder / "apt"
    for name in ("lists/partial", "archives/partial"):
        (apt / name).mkdir(parents=True, exist_ok=True)
    (apt / "status").touch()
    sources = os.environ.get("ARM_SOURCES", "")
    configuration = APT_CONFIGURATION.format(folder=apt)
    if sources:
        configuration += CHOSEN_SOURCES.format(sources=Path(sources).resolve())
    (apt / "apt.conf").write_text(configuration)
    remedy = (
        "If the sources of apt-get on this machine (/etc/apt) have no packages for arm64, "
        "ARM_SOURCES=FILE names a list of sources that have: a file in the format of sources.list."
    )
    for command in (["update"], ["install", "--download-only", "--yes", *SYSTEM_PACKAGES]):
        run([apt_get, "-q", "-o", "APT::Update::Error-Mode=any", *command], remedy, APT_CONFIG=str(apt / "apt.conf"))
    system = folder / "system"
    system.mkdir()
    for package in sorted((apt / "archives").glob("*.deb")):
        run([dpkg, "-x", str(package), str(system)], "The package is damaged.")
    (system / "proc").mkdir()
    (system / "proc" / "cpuinfo").write_text(CPUINFO)
    shutil.rmtree(apt)


def write_start(folder: Path, qemu: str) -> Path:
    """Write the program that starts Python with the folder as its virtual environment."""
    system, python = folder / "system", folder / "bin" / "python"
    python.parent.mkdir()
    python.write_text(START.format(qemu=qemu, processor=PROCESSOR, system=system, python=python))
    python.chmod(0o755)
    (folder / "pyvenv.cfg").write_text(f"home = {system}/usr/bin\ninclude-system-site-packages = false\n")
    return python


def wanted_packages() -> list[str]:
    """The dependencies of Weft and of its tests, from ``pyproject.toml``."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    tools = [tool for tool in project["optional-dependencies"]["dev"] if tool.partition("==")[0] in TEST_PACKAGES]
    assert len(tools) == len(TEST_PACKAGES), "pyproject.toml names other packages for development"
    return [*project["dependencies"], *tools]


def install_packages(folder: Path, python: Path) -> None:
    """Install wheels for ARM64 with this machine's pip, because pip takes many minutes under emulation."""
    asked = "import os, sys; print(*sys.version_info[:2], *os.confstr('CS_GNU_LIBC_VERSION').split()[1].split('.'))"
    found = subprocess.run([python, "-c", asked], capture_output=True, text=True, check=False)
    if found.returncode:
        sys.exit(f"{found.stderr}\nPython for ARM64 does not start under QEMU.")
    major, minor, _, libc = map(int, found.stdout.split())
    if (major, minor) < (3, 11):
        sys.exit(f"Weft needs Python 3.11, and the sources have {major}.{minor}: ARM_SOURCES=FILE names others.")
    packages = folder / "lib" / f"python{major}.{minor}" / "site-packages"
    platforms = ["manylinux2014_aarch64", *[f"manylinux_2_{number}_aarch64" for number in range(17, libc + 1)]]
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--only-binary=:all:"]
    command += [f"--python-version={major}.{minor}", "--implementation=cp", "--no-compile"]
    command += [f"--platform={name}" for name in platforms]
    run([*command, f"--target={packages}", *wanted_packages()], "Wheels for ARM64 are needed.")
    (packages / "weft.pth").write_text(f"{ROOT / 'src'}\n")


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("Usage: python tools/arm64.py FOLDER")
    if sys.platform != "linux" or os.uname().machine != "x86_64":
        sys.exit(
            "make test-arm emulates ARM64 on x86-64 under Linux. On ARM64 itself, make test is what it stands for."
        )
    qemu = program(("qemu-aarch64", "qemu-aarch64-static"), "qemu-user (or qemu-user-static)")
    apt_get, dpkg = program(("apt-get",), "apt"), program(("dpkg",), "dpkg")
    folder = Path(sys.argv[1]).resolve()
    if folder.exists():
        sys.exit(f"{folder} is there already: remove it, or name another folder.")
    folder.mkdir(parents=True)
    unpack_system(folder, apt_get, dpkg)
    install_packages(folder, write_start(folder, qemu))


if __name__ == "__main__":
    main()
