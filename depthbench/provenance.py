"""Who made a number: commit, versions, command, machine, time."""

from __future__ import annotations

import os
import platform
import resource
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from depthbench.paths import ROOT

if TYPE_CHECKING:
    import torch

    from depthbench.records import Provenance

_PACKAGES = ("torch", "ai2-olmo-core", "numpy", "datasets", "tokenizers")


def git_state() -> tuple[str | None, bool | None]:
    """The commit of the checkout and whether tracked files differ from it; (None, None) outside a checkout."""

    def git(*args: str) -> str:
        return subprocess.run(
            ["git", "-C", str(ROOT), *args], capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        return git("rev-parse", "HEAD"), bool(git("status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.CalledProcessError):
        return None, None


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that can change a number."""
    return {"python": platform.python_version(), **{name: version(name) for name in _PACKAGES}}


def command() -> str:
    """The command a reader would type; the launcher hands its own down, since a kernel's argv says nothing."""
    if given := os.environ.get("DEPTHBENCH_COMMAND"):
        return given
    return "a notebook" if "ipykernel" in sys.modules else " ".join(["python", Path(sys.argv[0]).name, *sys.argv[1:]])


def device_name(device: torch.device) -> str:
    """What computed: the GPU's name, or the CPU's model."""
    if device.type == "cuda":
        import torch

        return torch.cuda.get_device_name(device)
    try:
        with open("/proc/cpuinfo") as info:
            return next(line.split(":", 1)[1].strip() for line in info if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def peak_bytes(device: torch.device) -> int:
    """Most memory held at once: allocated on a GPU, else the resident set of this process."""
    if device.type == "cuda":
        import torch

        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def of_this_process(
    device: torch.device, *, dtype: str, microbatch_tokens: int, started: str, compile: bool = False
) -> Provenance:
    """The provenance of what one process made on one device, ended now."""
    import torch

    from depthbench.records import Provenance

    commit, dirty = git_state()
    return Provenance(
        git_commit=commit,
        dirty=dirty,
        command=command(),
        versions=versions(),
        device=device_name(device),
        n_devices=1,
        n_threads=torch.get_num_threads(),
        dtype=dtype,
        compile=compile,
        microbatch_tokens=microbatch_tokens,
        started=started,
        ended=now(),
    )


def now() -> str:
    """This moment in UTC, ISO 8601 to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")
