"""Probe finished runs and the models they started from, and keep small results for the chapters.

    python -m depthbench.probes build/runs/<run id> [...]

A result that is there already, of the same weights, text and code, is left; a run that was cut short goes on.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from depthbench.probes.kept import KEPT, STATES


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(
        prog="python -m depthbench.probes", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    top.add_argument("run_dirs", nargs="+", type=Path, metavar="RUN_DIR", help="folder of a finished run")
    top.add_argument("--probes", nargs="+", default=[], metavar="NAME", help="default: all that fit the design")
    top.add_argument("--out", type=Path, default=KEPT, help="default: results/probes")
    top.add_argument("--windows", type=int, default=32, metavar="N", help="held-out documents to read (default 32)")
    top.add_argument("--seq-len", type=int, metavar="T", help="tokens of each window; default: the run's")
    top.add_argument("--batch-size", type=int, default=8, metavar="B", help="windows at a time (default 8)")
    top.add_argument("--data-root", type=Path, help="where the prepared text lies; default: build/data")
    top.add_argument("--no-step-0", action="store_true", help="leave the control out")
    return top


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; errors the user can mend are one line and exit code 2."""
    options = parser().parse_args(arguments)
    from depthbench.data.token_files import DataError
    from depthbench.probes.runs import probe_run

    try:
        for run_dir in options.run_dirs:
            done = probe_run(
                run_dir,
                options.probes,
                out=options.out,
                states=STATES[:1] if options.no_step_0 else STATES,
                n_windows=options.windows,
                seq_len=options.seq_len,
                data_root=options.data_root,
                batch_size=options.batch_size,
            )
            print(f"{run_dir.name}: {len(done['made'])} results made, {len(done['left'])} there already")
    except (ValueError, FileNotFoundError, DataError) as error:
        print(f"depthbench.probes: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("depthbench.probes: stopped; the same command goes on", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
