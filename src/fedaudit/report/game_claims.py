"""What games say of an epsilon that is named: contradicted, or not the true one."""

from collections.abc import Sequence

from fedaudit.report.game_points import (
    Shown,
    epsilon,
    families,
    far_above,
    overtaken,
    right_in,
    short,
    times_named,
    times_text,
)
from fedaudit.report.grid import shortened
from fedaudit.report.words import percent


def contradiction(one: Shown) -> str:
    """Why a point's success and an epsilon cannot both be."""
    point = one.point
    told = f"{short(one)}: the server is right in {right_in(point.adv)} of games, which "
    if point.rounds is not None:
        return (
            f"{told}is more than the {percent(point.most)} that its noise allows any server. "
            "Either the defense does not do what it says, or that bound is worked out wrongly."
        )
    if overtaken(point) and point.true_epsilon is not None:
        return (
            f"{told}proves an epsilon of at least {epsilon(point.proven_epsilon)}, more than the "
            f"{epsilon(point.true_epsilon)} that its own probabilities give. Either the mechanism "
            "does not do what it says, or its epsilon is worked out wrongly."
        )
    named = point.nominal_epsilon or 0.0
    most = percent(point.most_nominal) if point.most_nominal is not None else "less"
    return (
        f"{told}proves an epsilon of at least {epsilon(point.proven_epsilon)}; "
        f"{epsilon(named)} is named. Under an honest ε of {epsilon(named)} no server is right in "
        f"more than {most} of games."
    )


def claims_of(shown: Sequence[Shown]) -> list[str]:
    """Mechanisms whose true epsilon is far above the named one, or is none."""
    found = []
    for name, inside in families(shown).items():
        far = [one.point for one in inside if far_above(one.point)]
        if not far:
            continue
        named = _epsilons([point.nominal_epsilon for point in far])
        true = [point.true_epsilon for point in far]
        if None in true:
            why = (
                "all records of a batch get the same noise, so that one record tells of the "
                "noise on another"
                if far[0].shared_mask
                else "its probabilities have no bound"
            )
            said = f"names ε {named} and gives no epsilon at all: {why}"
        else:
            times = [ratio for ratio in map(times_named, far) if ratio is not None]
            much = f"{times_text(min(times))} to {times_text(max(times))}" if times else "many"
            much = times_text(times[0]) if times and min(times) == max(times) else much
            said = (
                f"names ε {named} and by its own probabilities gives ε {_epsilons(true)} for one "
                f"record, {much} times as much"
            )
        found.append(f"{shortened(name, 80)} {said}.")
    return found


def _epsilons(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    least, most = epsilon(min(known)), epsilon(max(known))
    return least if least == most else f"{least} to {most}"
