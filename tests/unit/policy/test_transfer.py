"""When KV goes layer by layer, and what a transfer leaves visible."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.policy.transfer import (
    SWITCH_TOKENS,
    Calibration,
    LinkModel,
    choose,
    switch_point,
    visible_layerwise,
    visible_serialized,
)

MIB = 2**20
GBIT = 1e9 / 8


@pytest.mark.parametrize(
    ("tokens", "mode"),
    [(1, "serialized"), (511, "serialized"), (512, "layerwise"), (513, "layerwise"), (2048, "layerwise")],
)
def test_the_switch_is_at_512_tokens_of_the_batch(tokens: int, mode: str) -> None:
    assert choose(tokens) == mode


def test_a_switch_point_of_zero_sends_everything_layer_by_layer() -> None:
    assert choose(0, 0) == choose(1, 0) == "layerwise"


@pytest.mark.parametrize(
    ("gigabit", "layers", "layer_bytes", "compute_ms", "serialized_ms", "layerwise_ms"),
    [
        (1, 32, MIB, 10, 268.4, 8.4),
        (2, 32, MIB, 10, 134.2, 4.2),
        (2, 32, MIB, 3, 134.2, 41.2),  # the link is slower than the compute
        (4, 80, MIB, 10, 167.8, 2.1),
        (2, 32, 64 * 1024, 2, 8.4, 0.26),
    ],
)
def test_the_model_says_what_was_measured_on_a_limited_link(
    gigabit: float,
    layers: int,
    layer_bytes: int,
    compute_ms: float,
    serialized_ms: float,
    layerwise_ms: float,
) -> None:
    link = LinkModel(bytes_per_token=layers * layer_bytes, bytes_per_second=gigabit * GBIT)
    layerwise = visible_layerwise(link, 1, layers=layers, compute_seconds=layers * compute_ms / 1e3)
    assert visible_serialized(link, 1) * 1e3 == pytest.approx(serialized_ms, rel=0.01)
    assert layerwise * 1e3 == pytest.approx(layerwise_ms, rel=0.02)


@pytest.mark.parametrize(
    ("kib_per_token", "gigabit", "constant_ms", "tokens"),
    [
        (320, 200, 8, 610),  # Llama-2-70B, one NIC, A100
        (320, 400, 5, 763),  # the same on H100
        (3920, 8 * 200, 8, 399),  # BLOOM-176B on eight NICs, A100
        (3920, 8 * 400, 5, 498),  # on H100: the paper's "below 512"
    ],
)
def test_the_switch_point_is_where_serialized_crosses_the_constant(
    kib_per_token: float, gigabit: float, constant_ms: float, tokens: int
) -> None:
    link = LinkModel(bytes_per_token=kib_per_token * 1024, bytes_per_second=gigabit * GBIT)
    assert switch_point(link, constant_ms / 1e3) == tokens


def test_fixed_costs_move_the_models_and_the_switch_point() -> None:
    link = LinkModel(1000, 1e6, serialized_fixed=0.002, layerwise_fixed=0.004)
    assert visible_serialized(link, 8) == pytest.approx(0.010)
    assert visible_layerwise(link, 8, layers=4, compute_seconds=1) == pytest.approx(0.006)
    assert switch_point(link, 0.010) == 8
    assert switch_point(link, 0.001) == 0


@settings(deadline=None)
@given(
    tokens=st.integers(1, 8192),
    layers=st.integers(1, 100),
    compute=st.floats(0, 10),
    speed=st.floats(1e6, 1e11),
)
def test_layerwise_never_shows_more_than_serialized_nor_less_than_a_layer(
    tokens: int, layers: int, compute: float, speed: float
) -> None:
    link = LinkModel(bytes_per_token=327_680, bytes_per_second=speed)
    shown = visible_layerwise(link, tokens, layers=layers, compute_seconds=compute)
    whole = visible_serialized(link, tokens)
    assert whole / layers <= shown * (1 + 1e-9)
    assert shown <= whole * (1 + 1e-9)


def observed(
    calibration: Calibration, *, constant: float, fixed: float, per_token: float, n: int = 20
) -> None:
    for tokens in range(10, 10 * n + 1, 10):
        calibration.observe("serialized", tokens, fixed + per_token * tokens)
        calibration.observe("layerwise", 4 * tokens, constant)


def test_calibration_finds_the_crossing() -> None:
    calibration = Calibration()
    observed(calibration, constant=0.005, fixed=0.001, per_token=1e-5)
    assert calibration.switch_tokens == 400


def test_calibration_says_the_default_until_it_knows_both_modes() -> None:
    calibration = Calibration(enough=16)
    assert calibration.switch_tokens == SWITCH_TOKENS == 512
    for tokens in range(1, 40):
        calibration.observe("serialized", tokens, tokens * 1e-5)
    assert calibration.switch_tokens == 512
    for _ in range(15):
        calibration.observe("layerwise", 600, 0.001)
    assert calibration.switch_tokens == 512
    calibration.observe("layerwise", 600, 0.001)
    assert calibration.switch_tokens == 100


@pytest.mark.parametrize("per_token", [0.0, -1e-6])
def test_calibration_distrusts_a_line_that_does_not_rise(per_token: float) -> None:
    calibration = Calibration()
    observed(calibration, constant=0.005, fixed=0.01, per_token=per_token)
    assert calibration.switch_tokens == 512


def test_calibration_distrusts_prompts_of_one_size() -> None:
    calibration = Calibration()
    for _ in range(20):
        calibration.observe("serialized", 100, 0.001)
        calibration.observe("layerwise", 600, 0.001)
    assert calibration.switch_tokens == 512


@pytest.mark.parametrize(("constant", "expected"), [(1e-9, 64), (1e3, 4096)])
def test_calibration_stays_within_a_factor_of_eight(constant: float, expected: int) -> None:
    calibration = Calibration()
    observed(calibration, constant=constant, fixed=0.0, per_token=1e-5)
    assert calibration.switch_tokens == expected


def test_calibration_forgets_old_samples() -> None:
    calibration = Calibration(window=20)
    observed(calibration, constant=0.005, fixed=0.001, per_token=1e-5)
    observed(calibration, constant=0.003, fixed=0.001, per_token=1e-5)
    assert calibration.switch_tokens == 200


def test_a_default_of_zero_is_kept() -> None:
    calibration = Calibration(0)
    observed(calibration, constant=0.005, fixed=0.0, per_token=1e-5)
    assert calibration.switch_tokens == 0
