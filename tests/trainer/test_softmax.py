import pytest
import torch

from ludus.kernels.build import build_library
from ludus.kernels.head import NativeSoftmax
from ludus.trainer.softmax import TorchSoftmax


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocabulary", [5, 16, 1003])
@pytest.mark.parametrize("softcap", [None, 3.0])
def test_native_and_torch_agree(dtype: torch.dtype, vocabulary: int, softcap: float | None) -> None:
    """Both give the same log-probabilities, entropies, normalisers and gradients, within rounding."""
    generator = torch.Generator().manual_seed(vocabulary)
    logits = (torch.randn(7, vocabulary, generator=generator) * 5).to(dtype)
    logits[0] = 60.0  # all alike and large
    logits[1, 2], logits[2, 3] = 90.0, -90.0  # certain, and impossible
    targets = torch.tensor([0, 2, 3, vocabulary - 1, 1, 4, vocabulary - 1])
    temperatures = torch.tensor([1.0, 1.0, 0.5, 2.0, 0.1, 1.0, 1.0])
    slopes = torch.randn(7, generator=generator)
    slopes[3] = 0.0
    results, gradients = [], []
    for each in (NativeSoftmax(build_library("head")), TorchSoftmax()):
        own = logits.clone()
        logprobs, entropies, log_norms = each.summarise(own, targets, temperatures, softcap)
        assert torch.equal(own, logits)
        each.differentiate(own, targets, temperatures, softcap, log_norms_C=log_norms, slopes_C=slopes)
        results.append(torch.stack([logprobs, entropies, log_norms]))
        gradients.append(own)
    torch.testing.assert_close(results[0], results[1], atol=2e-5, rtol=1e-5)
    # fp32 of large scores keeps about six digits of an exponential; in bf16 one rounding more or less
    tolerance = 2e-5 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(gradients[0], gradients[1], atol=tolerance, rtol=tolerance)
