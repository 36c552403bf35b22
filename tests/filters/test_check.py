"""check-dp accepts correct filters and reports the fault of each broken one."""

import os
from collections.abc import Callable

import numpy as np
import pytest
import torch

import fedaudit
from fedaudit.core.errors import BadInput, Unsupported
from fedaudit.defenses.clip import ClientDP
from fedaudit.defenses.dpsgd import DPSGD
from fedaudit.defenses.noise import GradientNoise
from fedaudit.filters.check import check_dp
from fedaudit.filters.claim import FilterAudit, FilterVerdict, Result
from tests.filters import cases, steps
from tests.filters.cases import CLIP, SIGMA

LARGEST_CHANGE, NOISELESS, STD = (
    "largest change of the output",
    "outputs without noise",
    "standard deviation of noise",
)
LARGE_NOISE, EARLIER_ROUNDS = "noise on a large update", "influence of earlier rounds"
SHAPE, ENTRIES, CALLS = "shape of noise", "noise between entries", "noise between calls"
VISIBLE_NOISE = "visible noise"


def checked(filter: object, **settings: object) -> FilterAudit:
    claim: dict[str, object] = {"sensitivity": CLIP, "sigma": SIGMA}
    return check_dp(filter, **(claim | settings))  # type: ignore[arg-type]


def names(audit: FilterAudit, result: Result) -> set[str]:
    return {check.name for check in audit.of(result)}


def arrays() -> dict[str, np.ndarray]:
    return {"a": np.zeros((20, 10), np.float32), "b": np.zeros(20, np.float32)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("filter", "settings"),
    [
        (cases.plain, {}),
        (cases.in_place, {}),
        (cases.passed_on, {}),
        (cases.by_numpy, {"shape_from": arrays}),
        (cases.by_entropy, {}),
        (cases.by_secrets, {}),
        (cases.by_python, {}),
        (cases.by_module, {}),
        (cases.ObjectGenerator, {}),
        (cases.ObjectGenerator(), {}),
        (cases.closure, {}),
        (cases.closure(), {}),
        (cases.plain, {"adjacency": "replace", "sensitivity": 2 * CLIP, "sigma": SIGMA / 2}),
        (cases.plain, {"shape_from": [torch.zeros(30, 5), torch.zeros(30)], "kind": "listed"}),
        (cases.laplace, {"noise": "laplace", "sigma": 2.0}),
        (ClientDP(clip=CLIP, noise_multiplier=SIGMA), {}),
        (
            steps.FedauditStep,
            {"sensitivity": CLIP / steps.EXPECTED_BATCH_SIZE, "shape_from": steps.batch},
        ),
        (
            steps.FedauditStep,
            {
                "sensitivity": 2 * CLIP / steps.EXPECTED_BATCH_SIZE,
                "sigma": SIGMA / 2,
                "adjacency": "replace",
                "shape_from": steps.batch,
            },
        ),
    ],
)
def test_sound_filters_pass(filter: object, settings: dict[str, object]) -> None:
    if settings.get("kind") == "listed":
        filter, settings = listed, {"shape_from": settings["shape_from"]}
    audit = checked(filter, **settings)
    assert audit.verdict is FilterVerdict.SOUND, str(audit)


def listed(update: list[torch.Tensor]) -> list[torch.Tensor]:
    named = {str(place): value for place, value in enumerate(update)}
    return list(cases.plain(named).values())


def test_an_opacus_step_passes() -> None:
    pytest.importorskip("opacus", reason="Opacus is not installed")
    audit = checked(
        steps.opacus, sensitivity=CLIP / steps.EXPECTED_BATCH_SIZE, shape_from=steps.batch, calls=32
    )
    assert audit.verdict is FilterVerdict.SOUND, str(audit)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("filter", "check"),
    [
        (cases.one_layer_unclipped, LARGEST_CHANGE),
        (cases.noise_by_batch, ENTRIES),
        (cases.noise_before_clipping, LARGE_NOISE),
        (cases.StateBetweenRounds, EARLIER_ROUNDS),
        (cases.wrong_scale, STD),
        (cases.clip_of_the_module, EARLIER_ROUNDS),
        (cases.each_layer, LARGEST_CHANGE),
        (cases.late, LARGEST_CHANGE),
        (cases.first_layer_only, NOISELESS),
        (cases.seeded_each_time, STD),
        (cases.same_in_each_layer, ENTRIES),
        (cases.row_by_row, ENTRIES),
        (cases.uniform, SHAPE),
        (cases.laplace, SHAPE),
        (cases.scaled_to_the_update, LARGE_NOISE),
        (cases.Reused, CALLS),
        (cases.with_the_length, NOISELESS),
        (cases.unclipped_without_a_seed, LARGEST_CHANGE),
        (GradientNoise(sigma=SIGMA), LARGEST_CHANGE),
    ],
)
def test_faulty_filters_fail(filter: object, check: str) -> None:
    audit = checked(filter)
    assert audit.verdict is FilterVerdict.BROKEN
    assert check in names(audit, Result.FAILED), str(audit)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "check"),
    [
        (steps.noise_by_batch, LARGE_NOISE),
        (steps.noise_of_a_mean, STD),
        (steps.clips_the_batch, LARGEST_CHANGE),
    ],
)
def test_faulty_steps_fail(step: steps.Step, check: str) -> None:
    audit = checked(
        step, sensitivity=CLIP / steps.EXPECTED_BATCH_SIZE, shape_from=steps.batch, calls=32
    )
    assert audit.verdict is FilterVerdict.BROKEN
    assert check in names(audit, Result.FAILED), str(audit)


def test_unclipped_arrays_are_listed() -> None:
    audit = checked(cases.one_layer_unclipped)
    (check,) = (check for check in audit.checks if check.name == LARGEST_CHANGE)
    assert "that is large only in 'first.bias' or 'second.bias' changes" in check.why
    assert names(audit, Result.FAILED) == {LARGEST_CHANGE}


def test_the_sensitivity_is_checked_for_the_declared_adjacency() -> None:
    audit = checked(cases.plain, adjacency="replace")
    assert names(audit, Result.FAILED) == {LARGEST_CHANGE}
    (check,) = audit.of(Result.FAILED)
    assert check.measured.startswith("2")


def test_counters_of_a_network_count_as_outputs() -> None:
    audit = checked(cases.counted, shape_from=cases.network)
    assert names(audit, Result.FAILED) == {LARGEST_CHANGE, NOISELESS}
    assert "num_batches_tracked" in str(audit)


def test_a_declared_state_is_noted_without_failure() -> None:
    audit = checked(cases.StateBetweenRounds, stateful=True)
    assert audit.verdict is FilterVerdict.SOUND
    assert EARLIER_ROUNDS in names(audit, Result.NOTED)


def test_arrays_protected_elsewhere_are_excluded() -> None:
    assert checked(cases.with_the_length, elsewhere=["norm"]).verdict is FilterVerdict.SOUND


def test_without_noise_only_the_sensitivity_is_checked() -> None:
    assert checked(cases.clipped, sigma=0.0).verdict is FilterVerdict.SOUND
    audit = checked(cases.late, sigma=0.0)
    assert names(audit, Result.FAILED) == {LARGEST_CHANGE}
    assert "noise" in names(audit, Result.NOTED)


@pytest.mark.parametrize("filter", [cases.rounded, cases.thinned])
def test_noise_that_later_steps_hide_cannot_be_checked(filter: object) -> None:
    audit = checked(filter)
    assert audit.verdict is FilterVerdict.UNCHECKED
    assert names(audit, Result.UNTESTED) == {VISIBLE_NOISE}


def test_an_unseedable_generator_leaves_the_sensitivity_unchecked() -> None:
    audit = checked(cases.without_a_seed)
    assert audit.verdict is FilterVerdict.UNCHECKED
    (check,) = audit.of(Result.UNTESTED)
    assert check.name == LARGEST_CHANGE
    assert "±" in check.measured
    assert "draws cannot be repeated" in str(audit)


def test_updates_that_are_not_finite_are_noted() -> None:
    audit = checked(cases.plain)
    assert names(audit, Result.NOTED) == {"non-finite entries"}
    assert "NaN or infinity pass the filter" in str(audit)


def test_an_update_of_zeros_that_causes_an_error_is_noted() -> None:
    def dividing(update: cases.Update) -> cases.Update:
        factor = min(1.0, CLIP / cases.length(update))
        return cases.noisy({name: value * factor for name, value in update.items()})

    audit = checked(dividing)
    assert audit.verdict is FilterVerdict.SOUND
    assert "update of zeros causes ZeroDivisionError" in str(audit)


def test_unprotected_zero_dimensional_arrays_are_noted() -> None:
    def overlooking(update: cases.Update) -> cases.Update:
        with_dimensions = {name: value for name, value in update.items() if value.dim()}
        return update | cases.plain(with_dimensions)

    audit = checked(overlooking)
    assert audit.verdict is FilterVerdict.SOUND
    (check,) = (check for check in audit.checks if check.name == "zero-dimensional array")
    assert check.measured == "is not clipped and has no noise"
    example = {"w": torch.zeros(20, 10), "temperature": torch.tensor(0.0)}
    assert names(checked(overlooking, shape_from=example), Result.FAILED) == {
        LARGEST_CHANGE,
        NOISELESS,
    }


@pytest.mark.parametrize("dtype", [torch.half, torch.bfloat16, torch.double])
def test_rounding_errors_of_other_precisions_do_not_fail(dtype: torch.dtype) -> None:
    def narrow(update: cases.Update) -> cases.Update:
        wide = {name: value.double() for name, value in update.items()}
        return {name: value.to(dtype) for name, value in cases.plain(wide).items()}

    example = {"w": torch.zeros(40, 10, dtype=dtype), "b": torch.zeros(40, dtype=dtype)}
    audit = checked(narrow, shape_from=example)
    assert audit.verdict is FilterVerdict.SOUND, str(audit)


def coarse(update: cases.Update) -> cases.Update:
    """Round each array to 16 levels after the noise."""
    noisy = cases.plain(update)
    steps = {name: value.abs().max() / 8 for name, value in noisy.items()}
    return {name: (value / steps[name]).round() * steps[name] for name, value in noisy.items()}


def test_coarse_rounding_after_the_noise_is_not_sound() -> None:
    assert checked(coarse).verdict is not FilterVerdict.SOUND


def test_randomly_missing_arrays_are_not_compared() -> None:
    def leaving_out(update: cases.Update) -> cases.Update:
        names = [name for name in update if torch.rand(()) < 0.5 or name == "first.weight"]
        return {name: value for name, value in cases.plain(update).items() if name in names}

    assert checked(leaving_out, calls=32).verdict is not FilterVerdict.SOUND


def test_arrays_with_changing_shapes_raise() -> None:
    def shortening(update: cases.Update) -> cases.Update:
        return {name: value[value.abs() > 0.1] for name, value in cases.plain(update).items()}

    with pytest.raises(BadInput, match="an array of one name with different shapes"):
        checked(shortening)


def test_a_verdict_is_the_same_every_time() -> None:
    assert checked(cases.by_entropy) == checked(cases.by_entropy)


def test_a_check_does_not_change_global_state() -> None:
    def states() -> tuple[object, ...]:
        legacy = np.random.get_state()  # noqa: NPY002
        return (
            torch.get_rng_state().tolist(),
            [str(part) for part in legacy],
            str(cases._rng.bit_generator.state),
            list(cases._median),
            os.urandom,
        )

    before = states()
    for filter in (cases.by_module, cases.clip_of_the_module, cases.by_python, cases.by_numpy):
        checked(filter, shape_from=arrays if filter is cases.by_numpy else None, calls=16)
    assert states() == before


def test_a_check_does_not_change_the_given_filter() -> None:
    filter = cases.StateBetweenRounds()
    checked(filter, calls=16)
    assert filter.remainder == {}


def test_output_of_a_filter_is_suppressed(capsys: pytest.CaptureFixture[str]) -> None:
    def talking(update: cases.Update) -> cases.Update:
        print("clipping now")
        return cases.plain(update)

    checked(talking, calls=16)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("filter", "settings", "message"),
    [
        (cases.plain, {"sensitivity": 0.0}, "above 0 and finite, got 0.0"),
        (cases.plain, {"sigma": -1.0}, "at least 0, got -1.0"),
        (cases.plain, {"adjacency": "add"}, "remove or replace, got 'add'"),
        (cases.plain, {"noise": "cauchy"}, "gaussian or laplace, got 'cauchy'"),
        (cases.plain, {"calls": 8}, "at least 16"),
        (cases.plain, {"kind": "mod"}, "is 'mod'; give one of function, step"),
        (cases.plain, {"shape_from": {"w": "big"}}, "'w' in it is a str"),
        (cases.plain, {"shape_from": {}}, "it is empty"),
        (
            cases.plain,
            {"shape_from": {"n": torch.zeros(3, dtype=torch.int)}},
            "no floating-point entries",
        ),
        (cases.fails, {}, r"fails: RuntimeError: no such layer \(in cases.py, line \d+\)"),
        (cases.ends_the_program, {}, "fails: SystemExit: 0"),
        (cases.of_python, {}, r"failed to create a filter \(SystemExit"),
        (lambda update: 3, {}, "none of its input"),
        (lambda a, b, c, d: a, {}, "takes 4 arguments"),
        (3, {}, "got an int"),
        (steps.noise_by_batch, {}, "a training step needs a batch"),
        (steps.noise_by_batch, {"shape_from": lambda: (torch.ones(2, 6), torch.ones(2))}, "rows"),
        ("bogus", {}, "no filter named 'bogus'"),
        ("tests.filters.cases:plane", {}, "did you mean 'plain'"),
    ],
)
def test_uncheckable_filters_raise_with_advice(
    filter: object, settings: dict[str, object], message: str
) -> None:
    with pytest.raises(BadInput, match=message):
        checked(filter, **settings)


def test_an_uncopyable_filter_raises_with_advice() -> None:
    class Locked:
        def __deepcopy__(self, memo: object) -> "Locked":
            raise TypeError("it is locked")

        def __call__(self, update: cases.Update) -> cases.Update:
            return cases.plain(update)

    with pytest.raises(BadInput, match="give a class, or a function without arguments"):
        checked(Locked())
    assert checked(Locked).verdict is FilterVerdict.SOUND


def test_a_training_defense_raises_with_advice_to_check_a_step() -> None:
    with pytest.raises(Unsupported, match=r"DPSGD changes training \(in batches, .*gradient"):
        checked(DPSGD(clip=1.0, noise_multiplier=1.0))


def test_check_dp_is_exported() -> None:
    assert fedaudit.check_dp is check_dp


ANY: list[Callable[..., object]] = [cases.plain, cases.one_layer_unclipped, cases.Reused]


@pytest.mark.parametrize("filter", [*ANY, cases.noise_before_clipping, cases.counted])
def test_the_printed_audit_starts_with_the_verdict(filter: object) -> None:
    shape = cases.network if filter is cases.counted else None
    audit = checked(filter, shape_from=shape)
    lines = str(audit).split("\n")
    assert lines[0].startswith(f"{audit.verdict.upper()}: ")
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80
