"""How a prepared data set is made: documents out of `datasets`, split by the hash of their text, encoded, appended.

`prepare_from` is the one path of every set. It works in a scratch folder that is renamed when it is whole, under a
lock, so a set is there or is not; it saves where it is, so that a stopped preparation goes on there; and nothing in
it is random, so that the same text gives the same bytes in every folder and on every machine.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from depthbench.data.token_files import DTYPE, SCHEMA, SPLITS, DataError, TokenData, existing, load, sha256_of
from depthbench.data.vocabulary import BATCH_DOCS, special_ids, split_of, texts_of, train_bpe
from depthbench.paths import DATA

if TYPE_CHECKING:
    from datasets import Dataset, IterableDataset

CODE_VERSION = "1"  # raise it when the same text would give other tokens: it is part of every revision
SAVE_EVERY_TOKENS = 1 << 24


def prepare_from(
    dataset: Dataset | IterableDataset | Callable[[Path], Dataset | IterableDataset],
    name: str,
    root: Path | str = DATA,
    *,
    tokenizer: str | None = None,
    vocab_size: int = 512,
    val_fraction: float = 0.01,
    max_train_tokens: int | None = None,
    max_val_tokens: int | None = None,
    revision: str | None = None,
    sources: Sequence[dict[str, Any]] = (),
    request: dict[str, Any] | None = None,
    force: bool = False,
) -> TokenData:
    """Make the set `name` out of the column 'text' of a data set, in its order (shuffle it before, with a seed).

    dataset: or a function of a scratch folder that opens it, called only when there is work. tokenizer: a
    `tokenizers` file as text; without it a byte-level BPE of `vocab_size` ids is trained on the train split.
    max_train_tokens: the train split ends with the last whole document within it; the text is read on for val, unless
    max_val_tokens is given too. revision: what names the text; left out, it is the hash of all texts, which a stream
    or a function cannot give. sources, request: kept in the manifest. A set that is there and was asked for in the
    same way is verified and returned, a damaged one is made again, another is an error unless `force`. Raises
    `DataError`.
    """
    from datasets import Dataset
    from filelock import FileLock

    root = Path(root)
    if not re.fullmatch(r"[a-z0-9][a-z0-9._-]*", name) or name == "cache":
        raise DataError(f"{name!r} cannot name a data set: use a-z, 0-9, '.', '_', '-' (and not 'cache').")
    if not 0 < val_fraction < 1:
        raise DataError(f"val_fraction is {val_fraction}: it must lie between 0 and 1, both left out.")
    if revision is None:
        if not isinstance(dataset, Dataset):
            raise DataError("a stream, or a function that opens one, needs a revision: any string that names its text.")
        revision = _text_digest(dataset)
    asked: dict[str, Any] = {
        "revision": revision,
        "tokenizer": digest(tokenizer) if tokenizer else f"bpe-{vocab_size}",
        "val_fraction": val_fraction,
        "max_train_tokens": max_train_tokens,
        "max_val_tokens": max_val_tokens,
        "code": CODE_VERSION,
        **(request or {}),
    }
    cache = root / "cache"
    cache.mkdir(parents=True, exist_ok=True)
    with FileLock(cache / f"{name}.lock"):
        if not force and (there := existing(name, root, asked)):
            return there
        need = DTYPE.itemsize * ((max_train_tokens or 0) + (max_val_tokens or 0))
        if (free := shutil.disk_usage(root).free) < need:
            raise DataError(f"{name} needs {need / 1e9:.1f} GB below {root}, {free / 1e9:.1f} GB are free.")
        work = cache / f"{name}-{digest(asked)}"
        if not (work / "state.json").is_file():
            shutil.rmtree(work, ignore_errors=True)
        scratch = work / "huggingface"
        scratch.mkdir(parents=True, exist_ok=True)
        stream = _stream(dataset, scratch)
        vocabulary = work / "tokenizer.json"
        if not vocabulary.is_file():
            text = tokenizer or train_bpe(stream, vocab_size, val_fraction).to_str(pretty=True)
            vocabulary.write_bytes(text.encode())
        ids = special_ids(vocabulary)
        counts = write(stream, vocabulary, work, val_fraction, {"train": max_train_tokens, "val": max_val_tokens})
        manifest = {"schema": SCHEMA, "name": name, "revision": digest(asked), **ids, "dtype": "uint16", **counts}
        manifest |= {"tokenizer_sha256": sha256_of(vocabulary), "sources": list(sources), "request": asked}
        (work / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
        del stream  # lets go of the scratch files
        shutil.rmtree(scratch, ignore_errors=True)
        shutil.rmtree(root / name, ignore_errors=True)
        work.replace(root / name)
        for stale in cache.glob(f"{name}-{'[0-9a-f]' * 16}"):
            shutil.rmtree(stale, ignore_errors=True)
        return load(name, root)


def digest(value: Any) -> str:
    """Return 16 hexadecimal digits that name a JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


@dataclass
class _Part:
    """One split while it is written: its counts, and whether a document has not fitted any more."""

    n_tokens: int = 0
    n_docs: int = 0
    n_bytes: int = 0
    max_id: int = 0
    full: bool = False

    def add(self, file: BinaryIO, ids: list[int], n_bytes: int, limit: int | None) -> None:
        self.full = self.full or (limit is not None and self.n_tokens + len(ids) > limit)
        if not self.full:
            np.asarray(ids, DTYPE).tofile(file)
            self.n_tokens += len(ids)
            self.n_docs += 1
            self.n_bytes += n_bytes
            self.max_id = max(self.max_id, *ids)


def write(
    stream: IterableDataset, vocabulary: Path, work: Path, val_fraction: float, limits: dict[str, int | None]
) -> dict[str, dict[str, Any]]:
    """Write train.npy and val.npy into `work`, from a saved state if there is one, and return the manifest's counts.

    limits: most tokens per split, in whole documents. With one for val, reading ends when the train split is full;
    without, it goes on to the end of the text, so that val is the same for every length of train. Raises `DataError`.
    """
    from tokenizers import Tokenizer
    from tqdm.auto import tqdm

    tokenizer, saved = Tokenizer.from_file(str(vocabulary)), work / "state.json"
    parts = {split: _Part() for split in SPLITS}
    tokenizer.encode_special_tokens = True  # a text that spells <|endoftext|> is text, not the end of a document
    eos = special_ids(vocabulary)["eos"]
    if resumed := saved.is_file():
        state = json.loads(saved.read_text(encoding="utf-8"))
        parts = {split: _Part(**state[split]) for split in SPLITS}
        stream.load_state_dict(state["stream"])
    train, last = parts["train"], parts["train"].n_tokens
    with ExitStack() as stack:
        files = {
            split: stack.enter_context((work / f"{split}.npy").open("r+b" if resumed else "wb")) for split in SPLITS
        }
        for split, file in files.items():
            file.truncate(parts[split].n_tokens * DTYPE.itemsize)  # what was written after the saved state
            file.seek(0, os.SEEK_END)
        name = work.name.rpartition("-")[0]
        bar = tqdm(total=limits["train"], initial=last, unit="tok", unit_scale=True, desc=name, disable=None)
        stack.callback(bar.close)
        try:
            for batch in stream.iter(BATCH_DOCS):
                wanted = [(text, split_of(text, val_fraction)) for text in texts_of(batch)]
                wanted = [(text, split) for text, split in wanted if not parts[split].full]
                codes = tokenizer.encode_batch_fast([text for text, _ in wanted], add_special_tokens=False)
                for (text, split), code in zip(wanted, codes, strict=True):
                    parts[split].add(files[split], [*code.ids, eos], len(text.encode()), limits[split])
                    if train.full and limits["val"] is not None:
                        break
                bar.update(train.n_tokens - bar.n)
                if train.full and limits["val"] is not None:
                    break
                if train.n_tokens - last >= SAVE_EVERY_TOKENS:
                    last = train.n_tokens
                    for file in files.values():
                        file.flush()
                        os.fsync(file.fileno())
                    state = {"stream": stream.state_dict(), **{split: asdict(part) for split, part in parts.items()}}
                    (work / "state.tmp").write_text(json.dumps(state), encoding="utf-8")
                    (work / "state.tmp").replace(saved)
        except DataError:
            raise
        except Exception as error:  # the network, a broken file, the user's own generator
            raise DataError(
                f"reading the text stopped after {train.n_docs:,} documents ({type(error).__name__}: {error}). Run the "
                "same preparation again: it goes on at the last saved point."
            ) from error
    saved.unlink(missing_ok=True)
    for split, part in parts.items():
        if not part.n_docs:
            raise DataError(
                f"no document fell into the {split} split: give more documents, another val_fraction (now "
                f"{val_fraction}) or a higher limit of tokens (now {limits[split]})."
            )
    kept = {
        split: {key: value for key, value in asdict(part).items() if key != "full"} for split, part in parts.items()
    }
    return {split: {**part, "sha256": sha256_of(work / f"{split}.npy")} for split, part in kept.items()}


def _stream(
    dataset: Dataset | IterableDataset | Callable[[Path], Dataset | IterableDataset], scratch: Path
) -> IterableDataset:
    from datasets import Dataset, IterableDataset

    opened = dataset if isinstance(dataset, Dataset | IterableDataset) else dataset(scratch)
    if opened.column_names is not None and "text" not in opened.column_names:
        raise DataError(f"there is no column 'text' among {opened.column_names}: dataset.rename_column makes one.")
    return opened.to_iterable_dataset() if isinstance(opened, Dataset) else opened


def _text_digest(dataset: Dataset) -> str:
    hashed = hashlib.sha256()
    for batch in dataset.select_columns(["text"]).iter(1000):
        hashed.update(json.dumps(batch["text"]).encode())
    return hashed.hexdigest()[:16]
