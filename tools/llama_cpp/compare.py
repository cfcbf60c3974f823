"""Our ternary matrix products beside llama.cpp's TQ2_0, in one run on this machine.

    python3 tools/llama_cpp/compare.py [--threads 1,2] [--rows 1,2,4,8,16,128] [--work target/llama.cpp]

Fetches the source of the Python package llama-cpp-python with pip, which carries a llama.cpp, builds its CPU
backend for this machine with CMake, and lets it and `cargo bench -p runtime --bench matmul` take turns, shape
by shape. Needs a C++ compiler; CMake comes from pip. Prints a table, and exits with 1 if one of our products is
slower than llama.cpp's at the same shape, threads and rows (`a8`: TQ2_0's activations have 8 bits as well).
"""

import argparse
import re
import subprocess
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "tools" / "llama_cpp" / "matmul.cpp"


def run(*command: object, **more: object) -> str:
    done = subprocess.run([str(part) for part in command], check=True, stdout=subprocess.PIPE, text=True, **more)
    return done.stdout


def build(work: Path) -> Path:
    """The timing program, linked with a ggml that was built for this machine."""
    program = work / "matmul"
    python = work / "python"
    if not python.exists():
        run(sys.executable, "-m", "venv", python)
    run(python / "bin/pip", "install", "--quiet", "--disable-pip-version-check", "cmake", "ninja")
    if not list(work.glob("llama_cpp_python-*.tar.gz")):
        run(python / "bin/pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
            "--no-binary", "llama-cpp-python", "--dest", work, "llama-cpp-python")
    archive = max(work.glob("llama_cpp_python-*.tar.gz"))
    folder = work / archive.name.removesuffix(".tar.gz")
    if not folder.exists():
        with tarfile.open(archive) as packed:
            packed.extractall(work, filter="data")
    print(f"llama.cpp as in {archive.name}")
    llama, built = folder / "vendor/llama.cpp", work / "build"
    cmake = python / "bin/cmake"
    parts = [f"-DLLAMA_BUILD_{part}=OFF" for part in ("COMMON", "TESTS", "TOOLS", "EXAMPLES", "SERVER")]
    run(cmake, "-S", llama, "-B", built, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DBUILD_SHARED_LIBS=OFF",
        "-DGGML_NATIVE=ON", f"-DCMAKE_MAKE_PROGRAM={python / 'bin/ninja'}", *parts)
    run(cmake, "--build", built, "--target", "ggml", "ggml-cpu", "ggml-base")
    libraries = [f"-l{name}" for name in ("ggml", "ggml-cpu", "ggml-base")]
    found = {library.parent for library in built.rglob("libggml*.a")}
    run("c++", "-O2", "-std=c++17", SOURCE, f"-I{llama / 'ggml/include'}", *(f"-L{path}" for path in found), *libraries, "-fopenmp", "-lpthread", "-ldl", "-o", program)
    return program


def ours(threads: int, rows: list[int]) -> tuple[int, dict[tuple[int, int, int], float]]:
    """Bytes that are cycled through; milliseconds by outputs, inputs and rows of an `a8` product."""
    table = run("cargo", "bench", "--quiet", "-p", "runtime", "--bench", "matmul", "--", threads, "best", *rows,
                cwd=ROOT)
    print(table.splitlines()[0])
    cycle = int(re.search(r"(\d+) MiB of copies", table)[1]) << 20
    cells = re.findall(r"^ *(\d+) x *(\d+) +a8 +(\d+) +([\d.]+)", table, re.MULTILINE)
    return cycle, {(int(out), int(inputs), int(n)): float(ms) for out, inputs, n, ms in cells}


def main() -> int:
    numbers = lambda text: [int(n) for n in text.split(",")]  # noqa: E731
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=numbers, default=[1, 2])
    parser.add_argument("--rows", type=numbers, default=[1, 2, 4, 8, 16, 128])
    parser.add_argument("--work", type=Path, default=ROOT / "target" / "llama.cpp")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    program = build(options.work.resolve())
    slower = 0
    for threads in options.threads:
        cycle, mine = ours(threads, options.rows)
        print("threads  outputs x inputs  rows     ours  llama.cpp  ratio")
        for out, inputs in sorted({key[:2] for key in mine}):
            lines = run(program, threads, cycle, out, inputs, *options.rows).split()
            for n, theirs in zip(map(int, lines[::2]), map(float, lines[1::2])):
                ms = mine[out, inputs, n]
                slower += ms > theirs
                print(f"{threads:7}  {out:7} x {inputs:6}  {n:4}  {ms:7.3f}  {theirs:9.3f}  {theirs / ms:5.2f}")
    print("llama.cpp is faster nowhere" if slower == 0 else f"llama.cpp is faster in {slower} cells")
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main())
