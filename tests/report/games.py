"""Records of security games for the tests of reports."""

import math
from collections.abc import Mapping
from functools import partial

from fedaudit.games.playing import rate_estimate, success_estimates
from fedaudit.metrics.games import game_success, max_success_rate
from fedaudit.metrics.rate_limits import proportion
from fedaudit.results.estimate import Estimate
from fedaudit.results.games import (
    ACTUAL_EPSILON,
    CLAIMED_EPSILON,
    CLAIMED_SUCCESS,
    DETECTION_RATE,
    DETECTOR,
    FALSE_ALARMS,
    FIRES_FOR_OTHERS,
    FIRES_FOR_TARGET,
    GAMES,
    INDICATOR_AUC,
    OTHERS_AUC,
    OWN_AUC,
    PREDICTED_NEGATIVES,
    SERVER_SUCCESS,
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
    settings: dict[str, object] = {
        "delta_sound": 0.2,
        "failure_sound": 0.4,
        "delta_observed": 1e-8,
        "low": 0.55,
        "high": 0.7,
        "played": 0.6,
    }
    return TargetCertificate.model_validate({**settings, **changes})


def point(
    mechanism: str = "bitrand",
    claimed: float | None = 3.0,
    true: float | None = 668.0,
    *,
    right: int = 60,
    games: int = 200,
    largest: float | None = None,
    figures: Mapping[str, float | None] | None = None,
    **changes: object,
) -> PointPlayed:
    """A point that the server won ``right`` of 100 games at, of both kinds alike."""
    half = games // 2
    hits = right * half // 100
    success = game_success(hits, half, hits, half)
    settings = {} if claimed is None else {"mechanism.name": mechanism}
    if claimed is not None:
        settings["mechanism.options.nominal_epsilon"] = str(claimed)
    fires = proportion(30, games * 20 - half)
    estimate_of = partial(Estimate, topic=GAMES, defense=mechanism)
    figures_of_point = {PREDICTED_NEGATIVES: 0.8, CLAIMED_EPSILON: claimed, ACTUAL_EPSILON: true}
    figures_of_point[CLAIMED_SUCCESS] = None if claimed is None else max_success_rate(claimed)
    figures_of_point |= figures or {}
    allowed = max_success_rate(math.inf if true is None else true) if largest is None else largest
    estimates = [
        *success_estimates(success, estimate_of, allowed),
        rate_estimate(estimate_of, FIRES_FOR_TARGET, proportion(hits, half)),
        rate_estimate(estimate_of, FIRES_FOR_OTHERS, fires),
        *(
            estimate_of(metric=name, value=value)
            for name, value in figures_of_point.items()
            if value is not None
        ),
    ]
    settings_of_point: dict[str, object] = {
        "label": "" if claimed is None else f"{mechanism},nominal_epsilon={claimed}",
        "settings": settings,
        "samples": "digits, pixels, 64 features; 719 samples of the clients, 719 of the server",
        "mechanism": mechanism,
        "shared_mask": False,
        "targets": 40,
        "batch": 20,
        "estimates": estimates,
        **changes,
    }
    return PointPlayed.model_validate(settings_of_point)


def shared(claimed: float = 3.0, **changes: object) -> PointPlayed:
    """A point whose batches share one mask."""
    base_point = point(claimed=claimed, true=None, shared_mask=True, **changes)  # type: ignore[arg-type]
    mask = {"mechanism.options.shared_mask": "True"}
    label = f"{base_point.label},shared_mask=true"
    return changed(base_point, settings=base_point.settings | mask, label=label)


NONE = point("none", None, None, right=99)
CERTIFIED = point(
    claimed=5.0, certificates=[certificate(), certificate(played=None)], spread=SPREAD
)
REFUTED = point("ome", 1.0, 35_342.3, right=95)
HONEST = point("bitwise-rr", 7.0, 6.999999999999034, right=49)


def played(*points: PointPlayed, **changes: object) -> Record:
    """A record of points; of several mechanisms by default."""
    played_points = points or (NONE, point(), CERTIFIED, shared(right=66), REFUTED, HONEST)
    labels: dict[str, int] = {}
    named_points = []
    for each_point in played_points:
        times = labels[each_point.label] = labels.get(each_point.label, 0) + 1
        label = each_point.label if times == 1 else f"{each_point.label},again={times}"
        figures = [changed(figure, point=label) for figure in each_point.estimates]
        named_points.append(changed(each_point, label=label, estimates=figures))
    config = {
        "name": "games-of-tests",
        "about": "For tests.",
        "seed": 1,
        "data": {"name": "digits"},
    }
    detected = changes.pop("detected", None)
    assert detected is None or isinstance(detected, Detection)
    environment = Environment(versions={"torch": "2"}, commit="c0ffee", device="CPU")
    record = games_record("games-of-tests", config, named_points, detected, environment)
    return changed(record, **changes)


def indicator(name: str, server: str, auc: float, **changes: object) -> list[Estimate]:
    """Return the estimates of one indicator against one server."""
    estimate_of = partial(Estimate, topic=DETECTOR, attack=server, group=name)
    low, high, method = max(auc - 0.02, 0.0), min(auc + 0.02, 1.0), "bootstrap over 20 runs 95%"
    area = estimate_of(metric=INDICATOR_AUC, value=auc, low=low, high=high, method=method)
    return [
        changed(area, **changes),
        estimate_of(metric=OWN_AUC, value=auc),
        estimate_of(metric=OTHERS_AUC, value=auc),
        estimate_of(metric=DETECTION_RATE, value=0.4, low=0.12, high=0.74, n_members=10),
        estimate_of(metric=FALSE_ALARMS, value=0.1, low=0.01, high=0.45, n_nonmembers=10),
    ]


def detector(*indicators: list[Estimate], **changes: object) -> Detection:
    """Return a detector, by default with two indicators and two servers."""
    success = changes.pop("success", {"planted": 0.986, "one-row": 0.998})
    assert isinstance(success, dict)
    estimate_of = partial(Estimate, topic=DETECTOR, metric=SERVER_SUCCESS)
    figures = indicators or (
        indicator("twins", "planted", 0.99),
        indicator("rewritten-row", "planted", 1.0, low=None, high=None),
        indicator("twins", "one-row", 0.5),
        indicator("rewritten-row", "one-row", 0.8),
    )
    settings: dict[str, object] = {
        "federation": "fedsgd with 5 clients over 20 rounds, dense layers of 400 and 10 units",
        "runs": 20,
        "judged": 10,
        "honest": 40,
        "planted": 80,
        "own": 144,
        "estimates": [
            *(estimate_of(attack=server, value=value) for server, value in success.items()),
            *(figure for estimate in figures for figure in estimate),
        ],
        "weights": WeightSpread(
            edges=[-1.0, 0.0, 1.0],
            outlines=[Outline(server="", counts=[3, 1]), Outline(server="planted", counts=[2, 2])],
        ),
        **changes,
    }
    return Detection.model_validate(settings)


def hostile_games() -> Record:
    """Sixty points whose every free text tries to break out of the page.

    Their settings as a study file are longer than ``MOST_SETTINGS``.
    """
    bad = HOSTILE + HOSTILE_TAG + HOSTILE_LINK + "x" * 4500
    points = [
        changed(
            hostile_point,
            label=f"{place} {bad}",
            settings={f"{HOSTILE_TAG}.{place}": bad, "mechanism.name": bad},
            samples=bad,
            mechanism=f"{HOSTILE}{place % 30}{HOSTILE_TAG}",
            estimates=[changed(f, method=bad) for f in hostile_point.estimates],
        )
        for place, hostile_point in enumerate([NONE, CERTIFIED, REFUTED, shared()] * 15)
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
    """Return a detector with two hundred indicators whose names try to break out of the page."""
    bad = (HOSTILE_TAG + HOSTILE)[:60]
    indicators = [
        indicator(f"{place}{bad}"[:60], f"{place % 9}{bad}"[:60], 0.5) for place in range(200)
    ]
    return detector(
        *indicators,
        federation=bad,
        success={f"0{bad}"[:60]: 1.0},
        weights=WeightSpread(edges=[0.0, 1.0], outlines=[Outline(server=bad, counts=[1])] * 10),
    )
