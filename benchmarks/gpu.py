"""Run the GPU tests and the benchmarks of losses, training and evaluation; write the results into a
file.

    python benchmarks/gpu.py [RESULTS.md]

Send in the file: it contains the machine, the versions, and all commands with time, exit code and
output. The exit code is 1 if a command failed. If a GPU is not found, commands are not run, and the
exit code is 2.
"""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]
LINES_KEPT = 400  # keep the last lines of a command's output, which is long after some failures
PACKAGES = ("dml-core", "dml-losses", "dml-eval-rs", "dml-train", "torch", "torchvision", "numpy")


def commands(folder: Path) -> dict[str, list[str]]:
    """Return the commands by title; training writes runs into `folder`, which must be empty."""
    python = sys.executable
    training = ["--set", "training.device=cuda", "--set", "training.steps=300"]
    return {
        "tests": [python, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider"],
        "losses": [python, "benchmarks/losses/bench_losses.py", "--device", "cuda"],
        "large batches, many classes": [
            python, "benchmarks/losses/bench_scale.py", "--device", "cuda",
        ],
        "training": [python, "-m", "dml_train", "train", "demo", *training, "--out",
            str(folder / "float32")],
        "training in bfloat16": [
            python, "-m", "dml_train", "train", "demo", *training,
            "--set", "training.precision=bfloat16", "--out", str(folder / "bfloat16"),
        ],
        "evaluation beside faiss, on the CPU": [python, "benchmarks/evaluator/compare.py"],
    }  # fmt: skip


def machine() -> list[str]:
    """Describe the GPU, the CPU and the versions."""
    gpu = torch.cuda.get_device_properties(0)
    return [
        f"- GPU: {gpu.name}, {gpu.total_memory / 2**30:.0f} GiB, CUDA {torch.version.cuda}",
        (
            f"- CPU: {platform.processor() or platform.machine()}, {platform.system()} "
            f"{platform.release()}"
        ),
        f"- Python {platform.python_version()}; "
        + ", ".join(f"{name} {version(name)}" for name in PACKAGES),
    ]


def run(command: list[str]) -> tuple[int, float, str]:
    """Run a command in the repository; return the exit code, the seconds, and the end of the
    output.
    """
    begun = time.perf_counter()
    done = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    return (
        done.returncode,
        time.perf_counter() - begun,
        "\n".join(done.stdout.splitlines()[-LINES_KEPT:]),
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path, nargs="?", default=Path("gpu-results.md"))
    results = parser.parse_args().results
    if not torch.cuda.is_available():
        print(
            f"torch {torch.__version__} finds no CUDA device; run this on a machine with an NVIDIA "
            "GPU and a torch built for CUDA (check with nvidia-smi and torch.version.cuda)",
            file=sys.stderr,
        )
        return 2
    sections, failed = ["# Results on a GPU", "", *machine()], []
    with tempfile.TemporaryDirectory() as folder:
        for title, command in commands(Path(folder)).items():
            print(f"{title}: {' '.join(command[1:])}", flush=True)
            code, seconds, output = run(command)
            failed += [title] if code else []
            sections += ["", f"## {title}", "", f"`{' '.join(['python', *command[1:]])}`", ""]
            sections += [f"Exit code {code} after {seconds:.0f} s.", "", "```", output, "```"]
            results.write_text("\n".join(sections) + "\n", encoding="utf-8")  # kept if interrupted
    print(f"{results}: send this file in" + (f"; failed: {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
