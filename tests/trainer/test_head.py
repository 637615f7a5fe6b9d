import pytest
import torch
from torch import Tensor

from ludus.trainer.head import VocabularyHead

TEMPERATURES = (1.0, 0.7, 1.3, 1.0, 0.5)


def slow_logprobs(hidden: Tensor, weight: Tensor, targets: Tensor, cap: float | None) -> tuple[Tensor, Tensor]:
    """All logits at once, through autograd."""
    logits = hidden @ weight.t()
    if cap is not None:
        logits = cap * torch.tanh(logits / cap)
    logs = torch.log_softmax(logits / torch.tensor(TEMPERATURES)[:, None], dim=-1)
    return logs.gather(1, targets[:, None])[:, 0], -(logs.exp() * logs).sum(-1)


@pytest.mark.parametrize("cap", [None, 2.0])
@pytest.mark.parametrize("logit_bytes", [1, 2 * 4 * 33, 1 << 20])
def test_chunks_give_what_all_logits_give(cap: float | None, logit_bytes: int) -> None:
    """Log-probabilities, entropies and both gradients do not depend on how the tokens are cut into chunks."""
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(5, 8, generator=generator).requires_grad_()
    weight = torch.randn(33, 8, generator=generator).requires_grad_()
    targets = torch.tensor([0, 32, 5, 5, 17])
    grad, by_entropy = torch.randn(2, 5, generator=generator)
    head = VocabularyHead(weight.detach(), softcap=cap, logit_bytes=logit_bytes)
    slow, slow_entropies = slow_logprobs(hidden, weight, targets, cap)
    logprobs, entropies = head(hidden.detach(), targets, torch.tensor(TEMPERATURES))
    torch.testing.assert_close(logprobs, slow.detach())
    torch.testing.assert_close(entropies, slow_entropies.detach())

    def slopes(chunk: slice, seen: Tensor, seen_entropies: Tensor) -> tuple[Tensor, Tensor]:
        assert torch.equal(seen, logprobs[chunk]) and torch.equal(seen_entropies, entropies[chunk])
        return grad[chunk], by_entropy[chunk]

    sink = torch.ones_like(weight)
    fast_grad = head.differentiate(hidden.detach(), targets, torch.tensor(TEMPERATURES), slopes, sink_VD=sink)
    slow_grad, slow_weight_grad = torch.autograd.grad((slow, slow_entropies), (hidden, weight), (grad, by_entropy))
    torch.testing.assert_close(fast_grad, slow_grad, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(sink - 1, slow_weight_grad, atol=1e-5, rtol=1e-5)


def test_no_gradient_is_shorter_than_nothing() -> None:
    """Of tokens that are all but certain rounding leaves less than 0 of 1 - 2 p + the sum of squares, or nothing."""
    hidden = 7 + 7 * torch.rand(4096, 1, generator=torch.Generator().manual_seed(0))
    head, targets = VocabularyHead(torch.tensor([[1.0], [0.0], [-1.0]]), softcap=None), torch.zeros(4096).long()
    logs = torch.log_softmax(hidden @ head.weight_VD.t(), dim=-1)
    log_norms, of_squares = ((scale * hidden @ head.weight_VD.t()).logsumexp(-1) for scale in (1, 2))
    assert (1 - 2 * logs[:, 0].exp() + (of_squares - 2 * log_norms).exp()).min() < 0
    lengths = head.logit_gradients(hidden, targets, torch.ones(4096))
    assert 0 <= lengths.min() <= lengths.max() < 1e-5


@pytest.mark.parametrize("cap", [None, 2.0])
def test_a_card_takes_larger_chunks_and_leaves_nothing_on_the_host(cap: float | None) -> None:
    """Results are where the weight is; torch's device without values stands in for a card."""
    weight = torch.zeros(50_000, 8, dtype=torch.bfloat16, device="meta")
    head = VocabularyHead(weight, softcap=cap)
    assert head.chunk_rows > 4 * VocabularyHead(weight.new_zeros(weight.shape, device="cpu"), softcap=cap).chunk_rows
    hidden = torch.zeros(5, 8, dtype=torch.bfloat16, device="meta")
    targets, temperatures = (torch.zeros(5, dtype=dtype, device="meta") for dtype in (torch.int64, torch.float32))
    sink = torch.zeros(weight.shape, device="meta")
    gradient = head.differentiate(
        hidden, targets, temperatures, lambda chunk, logprobs, entropies: (logprobs, entropies), sink_VD=sink
    )
    assert {gradient.device.type, *(each.device.type for each in head(hidden, targets, temperatures))} == {"meta"}
