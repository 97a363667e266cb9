from __future__ import annotations

import pytest

from bench.samples import Samples, latency, milliseconds, ratio, seconds, signed_seconds


def test_an_even_number_of_samples_has_the_mean_of_the_middle_two_as_median() -> None:
    assert Samples((4.0, 1.0, 2.0, 3.0)).median == 2.5


def test_of_fifty_samples_the_95th_percentile_is_the_48th() -> None:
    assert Samples.of(float(number) for number in range(50, 0, -1)).p95 == 48.0


def test_of_few_samples_the_95th_percentile_is_the_largest() -> None:
    assert Samples((1.0, 9.0, 2.0)).p95 == 9.0


def test_ratios_are_taken_round_by_round() -> None:
    quiet_then_busy = Samples((1.0, 10.0, 1.0))

    assert Samples((1.1, 11.0, 1.1)).against(quiet_then_busy).values == pytest.approx((1.1,) * 3)


def test_sides_with_different_numbers_of_rounds_are_not_compared() -> None:
    with pytest.raises(ValueError, match=r"shorter"):
        Samples((1.0, 2.0)).against(Samples((1.0,)))


def test_no_samples_are_an_error() -> None:
    with pytest.raises(ValueError, match="nothing was measured"):
        Samples(())


def test_numbers_read_as_median_and_spread() -> None:
    samples = Samples((1.204, 1.3, 1.25))

    assert seconds(samples) == "1.25 s (1.20-1.30)"
    assert milliseconds(samples) == "1250.0 ms (1204.0-1300.0)"
    assert ratio(samples) == "1.25 (1.20-1.30)"
    assert latency(samples) == ("1250.0 ms", "1300.0 ms", "1300.0 ms")


def test_a_difference_shows_its_sign() -> None:
    difference = Samples((1.5, 1.0, 1.0)).minus(Samples((1.0, 1.25, 0.9)))

    assert signed_seconds(difference) == "+0.10 s (-0.25 to +0.50)"
