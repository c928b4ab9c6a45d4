"""What a trained model is worth: exact validation loss.

OLMo-core's `LMEvaluator` reads only the first `sequence_length` tokens of each document and drops the last partial
batch. Here every token of the held-out stream but the first is predicted exactly once: windows of T tokens laid end to
end, the last one short.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from tqdm import tqdm

from depthbench.designs.base import at_least_fp32
from depthbench.records import ValLoss


@torch.no_grad()
def token_nll(
    model: nn.Module, tokens: np.ndarray, *, seq_len: int, batch_size: int = 8, progress: bool = False
) -> np.ndarray:
    """Negative log-likelihood in nats of tokens[1:], each predicted once from the tokens before it in its window.

    Window w reads tokens[wT : (w+1)T] and predicts tokens[wT+1 : (w+1)T+1]. Shapes: tokens (n,), result (n-1,) float64.
    Raises ValueError for fewer than two tokens.
    """
    if len(tokens) < 2:
        raise ValueError(f"need at least two tokens to predict one, got {len(tokens)}")
    device = next(model.parameters()).device
    n, out = len(tokens) - 1, np.empty(len(tokens) - 1)
    starts = list(range(0, n, seq_len))
    full = [s for s in starts if s + seq_len <= n]
    batches = [full[i : i + batch_size] for i in range(0, len(full), batch_size)] + [[s] for s in starts[len(full) :]]
    was_training = model.training
    model.eval()
    try:
        for batch in tqdm(batches, desc="validation", disable=not progress, leave=False, mininterval=1.0):
            size = min(seq_len, n - batch[0])
            rows = np.stack([np.asarray(tokens[s : s + size + 1], dtype=np.int64) for s in batch])
            ids = torch.from_numpy(rows).to(device)  # (B, T + 1)
            logits = at_least_fp32(model(ids[:, :-1]))
            nll = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none").view(len(batch), size)
            for s, row in zip(batch, nll.double().cpu().numpy(), strict=True):
                out[s : s + size] = row
    finally:
        model.train(was_training)
    return out


def document_mean(nll: np.ndarray, documents: np.ndarray) -> tuple[float, float | None, int]:
    """Token-weighted mean, its standard error with documents as the sampling unit, and their number.

    mean = sum nll / n;  se = sqrt(D / (D - 1) * sum_d (sum_d nll - mean n_d)^2) / n, the ratio estimator's. With one
    document se is None. Shapes: nll (n,), documents (n,) non-decreasing indices.
    """
    _, index = np.unique(documents, return_inverse=True)
    counts = np.bincount(index)
    sums = np.bincount(index, weights=nll)
    mean, n_documents = float(nll.mean()), len(counts)
    if n_documents < 2:
        return mean, None, n_documents
    residual = sums - mean * counts
    return mean, math.sqrt(n_documents / (n_documents - 1) * float(residual @ residual)) / len(nll), n_documents


def validation_loss(
    model: nn.Module,
    tokens: np.ndarray,
    *,
    seq_len: int,
    documents: np.ndarray | None = None,
    bytes_per_token: float | None = None,
    batch_size: int = 8,
    progress: bool = False,
) -> ValLoss:
    """Exact mean cross-entropy of a token stream, in nats per token, with its standard error over documents.

    `documents` (n,) gives the document of each token (`TokenData.doc_ids`); without it the stream counts as one
    document and the standard error is None. bits per byte = nats / ln 2 / bytes_per_token.
    """
    nll = token_nll(model, tokens, seq_len=seq_len, batch_size=batch_size, progress=progress)
    owner = np.zeros(len(nll), dtype=np.int64) if documents is None else np.asarray(documents)[1:]
    mean, se, n_documents = document_mean(nll, owner)
    bits = mean / math.log(2) / bytes_per_token if bytes_per_token else None
    return ValLoss(mean=mean, se=se, n_tokens=len(nll), n_documents=n_documents, bits_per_byte=bits)
