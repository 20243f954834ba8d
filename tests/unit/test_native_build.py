"""Builds the native tests with cmake and runs them: plain, under sanitizers, and for aarch64.

The plain build executes the AVX-512 and AMX kernels through SIMDe and emulated tiles.
"""

import shutil
import subprocess
from pathlib import Path

import pytest

NATIVE = Path(__file__).resolve().parents[2] / "native"
AARCH64_LIBRARIES = "/usr/aarch64-linux-gnu"


def needs(*programs: str) -> None:
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")


def done(command: list[str], folder: Path) -> str:
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, f"{' '.join(command)}\n{ran.stdout[-6000:]}\n{ran.stderr[-3000:]}"
    return ran.stdout


def build(folder: Path, *options: str, target: str = "all") -> None:
    needs("cmake")
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    flags = ["-DHEADRACE_TESTS=ON", "-DHEADRACE_WERROR=ON", *options]
    done(["cmake", *generator, *flags, str(NATIVE)], folder)
    done(["cmake", "--build", ".", "--parallel", "2", "--target", target], folder)


def run_all(folder: Path) -> None:
    done(["ctest", "--output-on-failure"], folder)


@pytest.mark.timeout(600)
def test_pool_under_the_thread_sanitizer(tmp_path: Path) -> None:
    build(tmp_path, "-DHEADRACE_SANITIZE=thread", target="test_pool")
    done([str(tmp_path / "test" / "test_pool")], tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("sanitizers", ["address,undefined", "thread"])
def test_everything_under_sanitizers(tmp_path: Path, sanitizers: str) -> None:
    build(tmp_path, f"-DHEADRACE_SANITIZE={sanitizers}")
    run_all(tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_every_x86_kernel(tmp_path: Path) -> None:
    build(tmp_path)
    run_all(tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_neon_under_qemu(tmp_path: Path) -> None:
    needs("aarch64-linux-gnu-g++", "qemu-aarch64")
    build(
        tmp_path,
        "-DCMAKE_SYSTEM_NAME=Linux",
        "-DCMAKE_SYSTEM_PROCESSOR=aarch64",
        "-DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++",
        f"-DCMAKE_CROSSCOMPILING_EMULATOR=qemu-aarch64;-L;{AARCH64_LIBRARIES}",
    )
    run_all(tmp_path)
