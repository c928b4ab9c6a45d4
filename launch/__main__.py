"""`python -m launch plan|run|best|status SUITE` and `python -m launch chapters|figures|notebooks|keep|picture`."""

from __future__ import annotations

import argparse
import os
import shlex
import sys

from depthbench.data.token_files import DataError
from depthbench.designs import UnknownDesign


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(prog="python -m launch", description=__doc__)
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB")
    suite = argparse.ArgumentParser(add_help=False)
    suite.add_argument("suite", help="pocket, main-400m, ... (an unknown name lists them)")
    suite.add_argument(
        "--designs", nargs="+", metavar="NAME", help="default: the paper's ten; depth_mup and complete_p by name"
    )
    suite.add_argument("--n-layers", nargs="+", type=int, metavar="L", help="default: every depth of the suite")
    suite.add_argument(
        "--lr",
        nargs="+",
        type=_rate,
        metavar="RATE",
        help="default: the suite's grid; 'best': for each design and depth the best rate on record (see the verb best)",
    )
    suite.add_argument("--seeds", nargs="+", type=int, metavar="SEED", help="default: the suite's")
    suite.add_argument(
        "--tokens-per-param", type=float, metavar="X", help="token budget, in tokens per parameter of the base shape"
    )
    verbs.add_parser("plan", parents=[suite], help="what would run, what is done, and what it will cost")
    run = verbs.add_parser("run", parents=[suite], help="run what is missing, resume what was cut")
    run.add_argument("--workers", type=int, default=1, help="runs side by side, each on its own cores (default 1)")
    run.add_argument("--dry-run", action="store_true", help="print the plan and stop")
    run.add_argument(
        "--check", action="store_true", help="then say whether each run falls in the band of the committed ones"
    )
    verbs.add_parser("best", parents=[suite], help="the best learning rate of each design and depth on record")
    verbs.add_parser("status", parents=[suite], help="state of each run and the results so far")
    chapters = verbs.add_parser("chapters", help="execute the book's chapters and hand the outputs to the book")
    chapters.add_argument("names", nargs="*", metavar="CHAPTER", help="default: all")
    chapters.add_argument("--force", action="store_true", help="execute even what is unchanged")
    drawings = verbs.add_parser(
        "figures", help="execute chapters on other rows; export each figure as SVG and PDF, its data as CSV"
    )
    drawings.add_argument("names", nargs="*", metavar="CHAPTER", help="default: all")
    drawings.add_argument("--suite", metavar="S", help="the suite whose rows the chapters read")
    drawings.add_argument(
        "-p", dest="parameters", action="append", default=[], metavar="NAME=VALUE", help="a parameter of the chapters"
    )
    verbs.add_parser("notebooks", help="write build/notebooks/*.ipynb for plain papermill or JupyterLab")
    keep = verbs.add_parser(
        "keep", parents=[suite], help="copy finished local rows and thinned curves to results/, to be committed"
    )
    keep.add_argument("--allow-dirty", action="store_true", help="also rows made with uncommitted changes")
    verbs.add_parser("picture", help="draw the README's picture from the published numbers and the committed rows")
    return top


def _rate(text: str) -> float | str:
    return text if text == "best" else float(text)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; errors the user can mend are one line and exit code 2."""
    given = sys.argv[1:] if arguments is None else arguments
    options = parser().parse_args(given)
    os.environ["DEPTHBENCH_COMMAND"] = "python -m launch " + shlex.join(given)
    from launch import verbs

    try:
        return getattr(verbs, options.verb)(options)
    except (UnknownDesign, ValueError, FileNotFoundError, DataError) as error:
        print(f"launch: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
