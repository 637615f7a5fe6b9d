import pytest
import torch

from ludus.kernels.build import build_library
from ludus.kernels.head import Drawn, NativeSoftmax, Slopes
from ludus.trainer.softmax import TorchSoftmax


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocabulary", [5, 16, 1003])
@pytest.mark.parametrize("softcap", [None, 3.0])
@pytest.mark.parametrize("is_of_entropy", [False, True])
def test_native_and_torch_agree(
    dtype: torch.dtype, vocabulary: int, softcap: float | None, is_of_entropy: bool
) -> None:
    """Both give the same log-probabilities, entropies, normalisers and gradients, within rounding."""
    generator = torch.Generator().manual_seed(vocabulary)
    logits = (torch.randn(7, vocabulary, generator=generator) * 5).to(dtype)
    logits[0] = 60.0  # all alike and large
    logits[1, 2], logits[2, 3] = 90.0, -90.0  # certain, and impossible
    targets = torch.tensor([0, 2, 3, vocabulary - 1, 1, 4, vocabulary - 1])
    temperatures = torch.tensor([1.0, 1.0, 0.5, 2.0, 0.1, 1.0, 1.0])
    slopes = torch.randn(7, generator=generator)
    slopes[3] = 0.0
    drawn = Drawn(targets, temperatures, softcap)
    results, gradients = [], []
    for each in (NativeSoftmax(build_library("head")), TorchSoftmax()):
        own = logits.clone()
        logprobs, entropies, log_norms = each.summarise(own, drawn)
        assert torch.equal(own, logits)
        entropy = torch.stack([slopes.flip(0), entropies]) if is_of_entropy else None
        each.differentiate(own, drawn, Slopes(log_norms, slopes, entropy))
        results.append(torch.stack([logprobs, entropies, log_norms]))
        gradients.append(own)
    torch.testing.assert_close(results[0], results[1], atol=2e-5, rtol=1e-5)
    # fp32 of large scores keeps about six digits of an exponential; in bf16 one rounding more or less
    tolerance = 2e-5 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(gradients[0], gradients[1], atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("softcap", [None, 3.0])
def test_the_gradient_is_autograds(softcap: float | None) -> None:
    """Of a loss of log-probabilities and entropies, over temperature and under a cap."""
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(4, 37, generator=generator).mul_(4).requires_grad_()
    targets, temperatures = torch.tensor([0, 5, 36, 7]), torch.tensor([1.0, 0.7, 1.3, 1.0])
    by_logprob, by_entropy = torch.randn(2, 4, generator=generator)
    capped = logits if softcap is None else (logits / softcap).tanh() * softcap
    logprobs = (capped / temperatures[:, None]).log_softmax(-1)
    entropies = -(logprobs.exp() * logprobs).sum(-1)
    (logprobs.gather(1, targets[:, None])[:, 0] @ by_logprob + entropies @ by_entropy).backward()
    drawn = Drawn(targets, temperatures, softcap)
    for each in (NativeSoftmax(build_library("head")), TorchSoftmax()):
        own = logits.detach().clone()
        _, seen, log_norms = each.summarise(own, drawn)
        torch.testing.assert_close(seen, entropies.detach(), atol=1e-5, rtol=1e-5)
        entropy = torch.stack([by_entropy, seen])
        each.differentiate(own, drawn, Slopes(log_norms, by_logprob, entropy))
        torch.testing.assert_close(own, logits.grad, atol=1e-5, rtol=1e-4)
