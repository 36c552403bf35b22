"""Records of security games for the tests of reports."""

import math
from collections.abc import Mapping
from functools import partial

from fedaudit.games.playing import rate_estimate, success_estimates
from fedaudit.metrics.games import game_success, most_success
from fedaudit.metrics.rate_limits import proportion
from fedaudit.results.estimate import Estimate
from fedaudit.results.games import (
    ACTUAL,
    CLAIMED,
    CLAIMED_SUCCESS,
    DETECTED,
    DETECTOR,
    FALSE_ALARMS,
    FIRES_FOR_OTHERS,
    FIRES_FOR_TARGET,
    GAMES,
    OTHERS_AUC,
    OWN_AUC,
    PREDICTED_NEGATIVES,
    SERVER_SUCCESS,
    SIGN_AUC,
    Detection,
    Outline,
    PointPlayed,
    Spread,
    TargetCertificate,
    WeightSpread,
)
from fedaudit.results.record import Environment, Record, games_record
from tests.estimates import changed
from tests.report.records import HOSTILE, HOSTILE_LINK, HOSTILE_TAG

SPREAD = Spread(edges=[-2.0, -1.0, 0.0, 1.0, 2.0], of_target=[0, 1, 5, 4], of_others=[6, 3, 1, 0])


def certificate(**changes: object) -> TargetCertificate:
    """Of one target."""
    given: dict[str, object] = {
        "delta_sound": 0.2,
        "failure_sound": 0.4,
        "delta_sample": 1e-8,
        "low": 0.55,
        "high": 0.7,
        "played": 0.6,
    }
    return TargetCertificate.model_validate({**given, **changes})


def point(
    mechanism: str = "bitrand",
    named: float | None = 3.0,
    true: float | None = 668.0,
    *,
    right: int = 60,
    games: int = 200,
    most: float | None = None,
    figures: Mapping[str, float | None] | None = None,
    **changes: object,
) -> PointPlayed:
    """A point that the server won ``right`` of 100 games at, of both kinds alike."""
    half = games // 2
    hits = right * half // 100
    success = game_success(hits, half, hits, half)
    settings = {} if named is None else {"mechanism.name": mechanism}
    if named is not None:
        settings["mechanism.options.nominal_epsilon"] = str(named)
    fires = proportion(30, games * 20 - half)
    at = partial(Estimate, topic=GAMES, defense=mechanism)
    known = {PREDICTED_NEGATIVES: 0.8, CLAIMED: named, ACTUAL: true}
    known[CLAIMED_SUCCESS] = None if named is None else most_success(named)
    known |= figures or {}
    allowed = most_success(math.inf if true is None else true) if most is None else most
    estimates = [
        *success_estimates(success, at, allowed),
        rate_estimate(at, FIRES_FOR_TARGET, proportion(hits, half)),
        rate_estimate(at, FIRES_FOR_OTHERS, fires),
        *(at(metric=name, value=value) for name, value in known.items() if value is not None),
    ]
    found: dict[str, object] = {
        "label": "" if named is None else f"{mechanism},nominal_epsilon={named}",
        "settings": settings,
        "records": "digits, pixels, 64 features; 719 records of the clients, 719 of the server",
        "mechanism": mechanism,
        "shared_mask": False,
        "targets": 40,
        "batch": 20,
        "estimates": estimates,
        **changes,
    }
    return PointPlayed.model_validate(found)


def shared(named: float = 3.0, **changes: object) -> PointPlayed:
    """A point whose batches share one mask."""
    one = point(named=named, true=None, shared_mask=True, **changes)  # type: ignore[arg-type]
    mask = {"mechanism.options.shared_mask": "True"}
    label = f"{one.label},shared_mask=true"
    return changed(one, settings=one.settings | mask, label=label)


NONE = point("none", None, None, right=99)
CERTIFIED = point(named=5.0, certificates=[certificate(), certificate(played=None)], spread=SPREAD)
REFUTED = point("ome", 1.0, 35_342.3, right=95)
HONEST = point("bitwise-rr", 7.0, 6.999999999999034, right=49)


def played(*points: PointPlayed, **changes: object) -> Record:
    """A record of points; of several mechanisms by default."""
    given = points or (NONE, point(), CERTIFIED, shared(right=66), REFUTED, HONEST)
    labels: dict[str, int] = {}
    named = []
    for one in given:
        times = labels[one.label] = labels.get(one.label, 0) + 1
        label = one.label if times == 1 else f"{one.label},again={times}"
        figures = [changed(figure, point=label) for figure in one.estimates]
        named.append(changed(one, label=label, estimates=figures))
    config = {
        "name": "games-of-tests",
        "about": "For tests.",
        "seed": 1,
        "data": {"name": "digits"},
    }
    detected = changes.pop("detected", None)
    assert detected is None or isinstance(detected, Detection)
    made = Environment(versions={"torch": "2"}, commit="c0ffee", device="CPU")
    record = games_record("games-of-tests", config, named, detected, made)
    return changed(record, **changes)


def sign(name: str, server: str, auc: float, **changes: object) -> list[Estimate]:
    """Of one sign against one server."""
    at = partial(Estimate, topic=DETECTOR, attack=server, group=name)
    low, high, method = max(auc - 0.02, 0.0), min(auc + 0.02, 1.0), "bootstrap over 20 runs 95%"
    area = at(metric=SIGN_AUC, value=auc, low=low, high=high, method=method)
    return [
        changed(area, **changes),
        at(metric=OWN_AUC, value=auc),
        at(metric=OTHERS_AUC, value=auc),
        at(metric=DETECTED, value=0.4, low=0.12, high=0.74, n_members=10),
        at(metric=FALSE_ALARMS, value=0.1, low=0.01, high=0.45, n_nonmembers=10),
    ]


def detector(*signs: list[Estimate], **changes: object) -> Detection:
    """Of two signs and two servers by default."""
    success = changes.pop("success", {"planted": 0.986, "one-row": 0.998})
    assert isinstance(success, dict)
    at = partial(Estimate, topic=DETECTOR, metric=SERVER_SUCCESS)
    figures = signs or (
        sign("twins", "planted", 0.99),
        sign("rewritten-row", "planted", 1.0, low=None, high=None),
        sign("twins", "one-row", 0.5),
        sign("rewritten-row", "one-row", 0.8),
    )
    given: dict[str, object] = {
        "federation": "fedsgd with 5 clients over 20 rounds, dense layers of 400 and 10 units",
        "runs": 20,
        "judged": 10,
        "honest": 40,
        "planted": 80,
        "own": 144,
        "estimates": [
            *(at(attack=server, value=value) for server, value in success.items()),
            *(figure for of in figures for figure in of),
        ],
        "weights": WeightSpread(
            edges=[-1.0, 0.0, 1.0],
            outlines=[Outline(server="", counts=[3, 1]), Outline(server="planted", counts=[2, 2])],
        ),
        **changes,
    }
    return Detection.model_validate(given)


def hostile_games() -> Record:
    """Two hundred points whose every free text tries to break out of the page."""
    bad = HOSTILE + HOSTILE_TAG + HOSTILE_LINK + "x" * 9000
    points = [
        changed(
            one,
            label=f"{place} {bad}",
            settings={f"{HOSTILE_TAG}.{place}": bad, "mechanism.name": bad},
            records=bad,
            mechanism=f"{HOSTILE}{place % 30}{HOSTILE_TAG}",
            estimates=[changed(f, method=bad) for f in one.estimates],
        )
        for place, one in enumerate([NONE, CERTIFIED, REFUTED, shared()] * 50)
    ]
    return played(
        *points,
        name=bad,
        detected=hostile_detector(),
        content_hash=HOSTILE_TAG,
        config={HOSTILE: HOSTILE_TAG, "about": bad, "data": {"name": bad}, "deep": [{"x": bad}]},
        environment=Environment(versions={HOSTILE: bad}, commit=bad, device=bad, started=bad),
    )


def hostile_detector() -> Detection:
    """Two hundred signs whose names try to break out of the page, as far as names may be long."""
    bad = (HOSTILE_TAG + HOSTILE)[:60]
    signs = [sign(f"{place}{bad}"[:60], f"{place % 9}{bad}"[:60], 0.5) for place in range(200)]
    return detector(
        *signs,
        federation=bad,
        success={f"0{bad}"[:60]: 1.0},
        weights=WeightSpread(edges=[0.0, 1.0], outlines=[Outline(server=bad, counts=[1])] * 10),
    )
