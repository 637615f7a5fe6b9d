from ludus.trainer.loss_scale import LossScale


def test_the_factor_moves_as_torchs_scaler_does() -> None:
    """It halves at once, doubles after 2,000 finite steps in a row, and begins at 2^16."""
    scale = LossScale(is_needed=True)
    assert scale.factor == 65536
    scale.update(is_finite=False)
    for _ in range(1999):
        scale.update(is_finite=True)
    assert scale.factor == 32768
    scale.update(is_finite=True)
    assert scale.state() == (65536, 0)


def test_where_none_is_needed_it_stays_one() -> None:
    """Nothing moves it, a checkpoint of float16 neither."""
    scale = LossScale(is_needed=False)
    scale.update(is_finite=False)
    scale.load_state((1024.0, 3))
    assert scale.factor == 1


def test_where_none_was_kept_it_begins_anew() -> None:
    """A checkpoint that was written before there was a factor has none."""
    scale = LossScale(is_needed=True)
    scale.load_state(None)
    assert scale.state() == (65536, 0)
