"""No token waits for the ones after it or looks at other rows: a prefix, or a row alone, gives what the batch gives.

There is no cache for decoding, so that one token at a time means one prefix at a time.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from .cases import CASES, random_model, tokens

# Float64 carries 1e-16. Another length or batch makes BLAS add in another order, which costs a few digits: with mild
# random parameters all designs stay below 1e-13, and any wrong reading would show in the first decimals.
TOLERANCE = {"rtol": 1e-10, "atol": 1e-10}


@pytest.mark.parametrize(("design", "options"), CASES, ids=str)
def test_every_prefix_gives_the_same_logits(design: str, options: dict[str, Any]) -> None:
    model, ids = random_model(design, **options), tokens(length=9)
    with torch.no_grad():
        at_once = model(ids)
        for t in range(ids.shape[1]):
            torch.testing.assert_close(model(ids[:, : t + 1])[:, -1], at_once[:, t], **TOLERANCE)


@pytest.mark.parametrize(("design", "options"), CASES, ids=str)
def test_a_row_alone_is_a_row_of_a_batch(design: str, options: dict[str, Any]) -> None:
    model, ids = random_model(design, **options), tokens(batch=5, length=6)
    with torch.no_grad():
        together = model(ids)
        for row in range(len(ids)):
            torch.testing.assert_close(model(ids[row : row + 1]), together[row : row + 1], **TOLERANCE)
    assert not torch.allclose(together[0], together[1]), "rows must differ, or it shows nothing"
