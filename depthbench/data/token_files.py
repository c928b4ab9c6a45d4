"""The token files of one prepared data set: how they are written, checked and read.

A set is the folder <root>/<name>/:

    train.npy, val.npy   raw little-endian uint16, NO numpy header despite the name: OLMo-core's own format, read with
                         np.memmap(path, "<u2"), never with np.load. Documents follow each other, each ended by EOS.
    tokenizer.json       Hugging Face `tokenizers` file
    manifest.json        schema, name, revision, vocab_size, eos, pad, dtype, per split {n_tokens, n_docs, n_bytes (of
                         text in UTF-8), max_id, sha256}, tokenizer_sha256, sources, request (what was asked for)
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from depthbench.paths import DATA

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SCHEMA = 1
DTYPE = np.dtype("<u2")
SPLITS = ("train", "val")
VERIFY_BELOW_BYTES = 1 << 28  # smaller files are hashed at every load (0.1 s); larger ones with verify=True


class DataError(RuntimeError):
    """A data set is missing, damaged or cannot be made; the message says which command mends it."""


def named(name: str) -> int | None:
    """Return the vocabulary size of a named data set (packages-<512..8192>, fineweb-edu), None for any other name."""
    if name == "fineweb-edu":
        return 50280
    found = re.fullmatch(r"packages-([1-9]\d{2,3})", name)
    return int(found[1]) if found and 512 <= int(found[1]) <= 8192 else None


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(frozen=True)
class TokenData:
    """A prepared set: folder, manifest and memory-mapped tokens; made by `depthbench.data.prepare` or `load`."""

    name: str
    dir: Path
    manifest: dict[str, Any]

    @property
    def train_path(self) -> Path:
        """Raw uint16 tokens of the train split, as OLMo-core reads them."""
        return self.dir / "train.npy"

    @property
    def val_path(self) -> Path:
        """Raw uint16 tokens of the validation split."""
        return self.dir / "val.npy"

    @property
    def tokenizer_path(self) -> Path:
        """The Hugging Face `tokenizers` file."""
        return self.dir / "tokenizer.json"

    @property
    def vocab_size(self) -> int:
        """Number of token ids; every id in the files is below it."""
        return int(self.manifest["vocab_size"])

    @property
    def eos(self) -> int:
        """Id that ends every document, and is nowhere else."""
        return int(self.manifest["eos"])

    @property
    def pad(self) -> int:
        """Id for padding; it is never in the files."""
        return int(self.manifest["pad"])

    @property
    def provenance(self) -> dict[str, Any]:
        """What a run record keeps: name, revision, and n_tokens and sha256 of both splits."""
        kept = {split: {key: self.manifest[split][key] for key in ("n_tokens", "sha256")} for split in SPLITS}
        return {"name": self.name, "revision": self.manifest["revision"], **kept}

    def tokens(self, split: str) -> npt.NDArray[np.uint16]:
        """Return the tokens of 'train' or 'val' as a read-only memory map, shape (n_tokens,)."""
        if split not in SPLITS:
            raise ValueError(f"split {split!r}: allowed are {', '.join(SPLITS)}")
        return np.memmap(self.dir / f"{split}.npy", DTYPE, "r")

    def train_tokens(self) -> npt.NDArray[np.uint16]:
        """Return the train tokens as a read-only memory map, shape (n_tokens,)."""
        return self.tokens("train")

    def val_tokens(self) -> npt.NDArray[np.uint16]:
        """Return the validation tokens as a read-only memory map, shape (n_tokens,)."""
        return self.tokens("val")

    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer the files were made with."""
        from tokenizers import Tokenizer

        return Tokenizer.from_file(str(self.tokenizer_path))

    def bytes_per_token(self, split: str = "val") -> float:
        """Return UTF-8 bytes of text per token, EOS counted: bits per byte = nats per token / ln 2 / this."""
        return float(self.manifest[split]["n_bytes"] / self.manifest[split]["n_tokens"])

    def doc_ids(self, split: str = "val", stop: int | None = None) -> npt.NDArray[np.int32]:
        """Return the document index of each of the first `stop` tokens, shape (stop,); EOS belongs to what it ends."""
        ends = (self.tokens(split)[:stop] == self.eos).astype(np.int32)
        return np.cumsum(ends, dtype=np.int32) - ends

    def doc_starts(self, split: str = "val") -> npt.NDArray[np.int64]:
        """Return the position of each document's first token and, last, n_tokens; shape (n_docs + 1,)."""
        ends = np.flatnonzero(self.tokens(split) == self.eos).astype(np.int64) + 1
        return np.concatenate([np.zeros(1, np.int64), ends])


def prepared(root: Path | str = DATA) -> tuple[str, ...]:
    """Return the names of the sets that lie under `root`."""
    return tuple(sorted(path.parent.name for path in Path(root).glob("*/manifest.json")))


def load(name: str, root: Path | str = DATA, *, verify: bool | None = None) -> TokenData:
    """Return the prepared set `name`; manifest, tokenizer and sizes are always checked.

    verify: True hashes the token files and looks at every id, False does not, None does so for files below 256 MB.
    Raises `DataError`, whose message holds the mending command.
    """
    folder = Path(root) / name
    where = "" if Path(root) == DATA else f" --root {shlex.quote(str(root))}"
    mend = f"python -m depthbench.data prepare {name}{where}" if named(name) else "call prepare_from again on its text"

    def refuse(what: str) -> DataError:
        return DataError(f"data set {name!r} in {folder}: {what}. To mend it: {mend}")

    if not (folder / "manifest.json").is_file():
        raise refuse(
            f"not prepared, there is no manifest.json (prepared there: {', '.join(prepared(root)) or 'nothing'})"
        )
    try:
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        if manifest["schema"] != SCHEMA:
            raise refuse(f"the manifest has schema {manifest['schema']}, this version reads {SCHEMA}")
        if manifest["dtype"] != "uint16":
            raise refuse(f"dtype is {manifest['dtype']!r}, only 'uint16' (little-endian) is allowed")
        data = TokenData(name, folder, manifest)
        if sha256_of(data.tokenizer_path) != manifest["tokenizer_sha256"]:
            raise refuse("tokenizer.json is not the one the tokens were made with (its sha256 differs)")
        for split in SPLITS:
            part, path = manifest[split], folder / f"{split}.npy"
            size, want = path.stat().st_size, part["n_tokens"] * DTYPE.itemsize
            if size != want:
                raise refuse(f"{path.name} has {size:,} bytes, the manifest says {want:,}: truncated or replaced")
            deep = want < VERIFY_BELOW_BYTES if verify is None else verify
            top = max(part["max_id"], int(data.tokens(split).max()) if deep else 0)
            if top >= data.vocab_size:
                raise refuse(f"{path.name} holds id {top}, outside the vocabulary of {data.vocab_size}")
            if deep and (found := sha256_of(path)) != part["sha256"]:
                raise refuse(f"{path.name} has sha256 {found[:12]}.., the manifest says {part['sha256'][:12]}..")
    except FileNotFoundError as error:
        raise refuse(f"{Path(error.filename).name} is missing") from error
    except (KeyError, TypeError, ValueError) as error:
        raise refuse(f"manifest.json cannot be read ({type(error).__name__}: {error})") from error
    return data


def existing(name: str, root: Path, asked: dict[str, Any]) -> TokenData | None:
    """Return a sound set that was made as `asked`, None if there is none; one made otherwise is a `DataError`."""
    try:
        data = load(name, root)
    except DataError:
        return None
    had = data.manifest.get("request", {})
    other = [f"{key} {had.get(key)!r}, not {want!r}" for key, want in asked.items() if want != had.get(key)]
    if other:
        raise DataError(
            f"data set {name!r} in {data.dir} was made with {'; '.join(other)}. Keep it (load), choose another root, "
            "or replace it with force=True (--force)."
        )
    return data
