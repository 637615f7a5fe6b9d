import pytest
import torch
import transformers
from torch.nn import Parameter

from ludus.errors import ConfigError, UserError
from ludus.trainer.optimizer import MasterOptimizer, learning_rate
from ludus.trainer.rounding import Rounding
from ludus.trainer.settings import OptimizerSettings

ROUNDING = Rounding("dither", 0, torch.device("cpu"))


def parameters(dtype: torch.dtype = torch.float32) -> dict[str, Parameter]:
    generator = torch.Generator().manual_seed(0)
    shapes = {"matrix": (4, 3), "bias": (3,)}
    return {name: Parameter(torch.randn(shape, generator=generator).to(dtype)) for name, shape in shapes.items()}


def test_steps_equal_plain_adamw_with_clipping() -> None:
    """Three steps of gathered gradients move the masters as torch's AdamW with clip_grad_norm_ moves parameters."""
    ours, plain = parameters(), parameters()
    settings = OptimizerSettings(lr=0.1, weight_decay=0.1, max_grad_norm=1.0)
    optimizer = MasterOptimizer(ours, settings, ROUNDING)
    groups = [{"params": [plain["matrix"]], "weight_decay": 0.1}, {"params": [plain["bias"]], "weight_decay": 0.0}]
    adamw = torch.optim.AdamW(groups, lr=0.1, betas=settings.betas, eps=settings.eps)
    for step in range(3):
        for part in (1.0, 2.0):  # two micro-batches
            for each in (ours, plain):
                ((each["matrix"] * part).sin().sum() + (each["bias"] * (step + 1)).cos().sum()).backward()
        norm = torch.nn.utils.clip_grad_norm_(plain.values(), 1.0)
        adamw.step()
        adamw.zero_grad()
        result = optimizer.step()
        assert ours["matrix"].grad is None
        optimizer.copy_to_parameters()
        assert result.grad_norm == pytest.approx(float(norm))
        for name in plain:
            torch.testing.assert_close(ours[name], plain[name])


def test_small_steps_are_not_lost_in_bf16() -> None:
    """A step far below bf16's resolution moves the published weights by as much on average, from the first one on."""
    values = {"one": Parameter(torch.ones(100, 100, dtype=torch.bfloat16))}
    optimizer = MasterOptimizer(values, OptimizerSettings(lr=1e-4), ROUNDING)
    for step in range(1, 6):
        values["one"].sum().backward()
        optimizer.step()
        optimizer.copy_to_parameters()
        assert float(values["one"].detach().float().mean()) == pytest.approx(1 - step * 1e-4, abs=4e-5)
    assert optimizer.masters["one"][0, 0].item() == pytest.approx(1 - 5e-4, abs=1e-5)


def test_gradient_that_is_not_finite_moves_nothing() -> None:
    """An infinite gradient is reported and skipped; the next one moves as if it had never been."""
    values = parameters()
    optimizer = MasterOptimizer(values, OptimizerSettings(lr=0.1), ROUNDING)
    before = {name: master.clone() for name, master in optimizer.masters.items()}
    (values["matrix"].sum() * float("inf")).backward()
    assert optimizer.step().is_skipped
    assert all(torch.equal(before[name], master) for name, master in optimizer.masters.items())
    values["matrix"].sum().backward()
    assert not optimizer.step().is_skipped
    assert torch.isfinite(optimizer.masters["matrix"]).all()


def test_forgotten_gradients_move_nothing() -> None:
    """What was gathered and forgotten is in no later step, and the masters have not moved."""
    values, others = parameters(), parameters()
    forgetful, fresh = (MasterOptimizer(each, OptimizerSettings(lr=0.1), ROUNDING) for each in (values, others))
    values["matrix"].exp().sum().backward()
    forgetful.forget_gradients()
    assert forgetful.gradients() == {}
    for each, optimizer in ((values, forgetful), (others, fresh)):
        each["matrix"].sum().backward()
        optimizer.step()
    assert all(torch.equal(forgetful.masters[name], fresh.masters[name]) for name in values)


@pytest.mark.parametrize("moments", ["fp32", "bf16"])
def test_state_goes_on_exactly(moments: str) -> None:
    """An optimizer that took over another's state makes the same next step, bit by bit."""
    settings = OptimizerSettings.model_validate({"lr": 0.1, "warmup_steps": 4, "moments": moments})
    runs = []
    for is_resumed in (False, True):
        values = parameters()
        optimizer = MasterOptimizer(values, settings, ROUNDING)
        for step in range(4):
            if is_resumed and step == 2:
                state = optimizer.state()
                values = parameters()
                fresh = MasterOptimizer(values, settings, ROUNDING)
                fresh.load_state(state)
                fresh.copy_to_parameters()
                optimizer = fresh
            (values["matrix"].sin().sum() + values["bias"].cos().sum()).backward()
            optimizer.step()
            optimizer.copy_to_parameters()
        runs.append(optimizer.masters)
    assert all(torch.equal(runs[0][name], runs[1][name]) for name in runs[0])


def test_state_of_another_model_is_refused() -> None:
    """A checkpoint with other parameters names some of them."""
    optimizer = MasterOptimizer(parameters(), OptimizerSettings(), ROUNDING)
    with pytest.raises(UserError, match="other"):
        MasterOptimizer({"other": Parameter(torch.ones(1))}, OptimizerSettings(), ROUNDING).load_state(
            optimizer.state()
        )


def test_learning_rate_warms_up_and_decays() -> None:
    """Warm-up over 4 steps, then each decay from the full rate to 0 at total_steps."""
    linear = OptimizerSettings(lr=1.0, warmup_steps=4, decay="linear", total_steps=12)
    assert [learning_rate(step, linear) for step in (0, 3, 4, 8, 12, 20)] == [0.25, 1.0, 1.0, 0.5, 0.0, 0.0]
    cosine = OptimizerSettings(lr=1.0, decay="cosine", total_steps=8)
    assert [learning_rate(step, cosine) for step in (0, 4, 8)] == pytest.approx([1.0, 0.5, 0.0])
    assert learning_rate(1000, OptimizerSettings(lr=1.0, warmup_steps=2)) == 1.0


@pytest.mark.parametrize("decay", ["constant", "linear", "cosine"])
def test_a_warm_up_from_zero_is_that_of_transformers(decay: str) -> None:
    """And of all that take theirs: TRL, verl, AReaL. By default the first step trains already."""
    sgd = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    if decay == "constant":
        schedule = transformers.get_constant_schedule_with_warmup(sgd, 4)
    else:
        schedule = getattr(transformers, f"get_{decay}_schedule_with_warmup")(sgd, 4, 12)
    theirs = []
    for _ in range(13):
        theirs.append(schedule.get_last_lr()[0])
        sgd.step()
        schedule.step()
    settings = OptimizerSettings(lr=1.0, warmup_steps=4, warmup_from_zero=True, decay=decay, total_steps=12)  # type: ignore[arg-type]
    assert [learning_rate(step, settings) for step in range(13)] == pytest.approx(theirs)
    assert theirs[0] == 0.0 and learning_rate(0, settings.model_copy(update={"warmup_from_zero": False})) == 0.25
    (idle,) = OptimizerSettings(warmup_from_zero=True).idle()
    assert idle.key == "warmup_from_zero"


def test_all_optimizer_steps_of_a_batch_have_one_learning_rate() -> None:
    """The schedule counts batches, as verl's and AReaL's do: three steps on a batch are one of the warm-up."""
    settings = OptimizerSettings(lr=1.0, warmup_steps=4)
    optimizer = MasterOptimizer({"w": Parameter(torch.zeros(2))}, settings, ROUNDING)
    rates = []
    for _ in range(2):
        for _ in range(3):
            optimizer.add_gradient("w", torch.ones(2))
            rates.append(optimizer.step().lr)
        optimizer.end_batch()
    assert rates == [0.25] * 3 + [0.5] * 3


def test_decay_and_its_length_belong_together() -> None:
    """A decay without its length is refused where it is to be used, and a length without a decay does not act."""
    with pytest.raises(ConfigError, match=r"decay='linear' needs the number of steps"):
        MasterOptimizer(parameters(), OptimizerSettings(decay="linear"), ROUNDING)
    assert [idle.key for idle in OptimizerSettings(total_steps=10).idle()] == ["total_steps"]
