"""Records of security games for the tests of reports."""

import math

from fedaudit.metrics.games import game_success, most_success
from fedaudit.metrics.rates import share
from fedaudit.results.detector import Caught, Detector, Outline, SignWorth, WeightSpread
from fedaudit.results.games import GameRecord, PointPlayed, Rate, Spread, Success, TargetCertificate
from fedaudit.results.record import Environment
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
    **changes: object,
) -> PointPlayed:
    """A point that the server won ``right`` of 100 games at, of both kinds alike."""
    half = games // 2
    hits = right * half // 100
    success = game_success(hits, half, hits, half)
    settings = {} if named is None else {"mechanism.name": mechanism}
    if named is not None:
        settings["mechanism.options.nominal_epsilon"] = str(named)
    found: dict[str, object] = {
        "label": "" if named is None else f"{mechanism},nominal_epsilon={named}",
        "settings": settings,
        "records": "digits, pixels, 64 features; 719 records of the clients, 719 of the server",
        "mechanism": mechanism,
        "shared_mask": False,
        "nominal_epsilon": named,
        "true_epsilon": true,
        "targets": 40,
        "batch": 20,
        "tpr": Rate(**success.tpr._asdict()),
        "tnr": Rate(**success.tnr._asdict()),
        "adv": Success(**success.adv._asdict()),
        "by_target": Rate(**share(hits, half)._asdict()),
        "by_others": Rate(**share(30, games * 20 - half)._asdict()),
        "predicted_tnr": 0.8,
        "most": most_success(math.inf if true is None else true),
        "most_nominal": None if named is None else most_success(named),
        "proven_epsilon": success.epsilon.value,
        **changes,
    }
    return PointPlayed.model_validate(found)


def shared(named: float = 3.0, **changes: object) -> PointPlayed:
    """A point whose batches share one mask."""
    one = point(named=named, true=None, shared_mask=True, **changes)  # type: ignore[arg-type]
    mask = {"mechanism.options.shared_mask": "True"}
    label = f"{one.label},shared_mask=true"
    return one.model_copy(update={"settings": one.settings | mask, "label": label})


NONE = point("none", None, None, right=99)
CERTIFIED = point(named=5.0, certificates=[certificate(), certificate(played=None)], spread=SPREAD)
REFUTED = point("ome", 1.0, 35_342.3, right=95)
HONEST = point("bitwise-rr", 7.0, 6.999999999999034, right=49)


def played(*points: PointPlayed, **changes: object) -> GameRecord:
    """A record of points; of several mechanisms by default."""
    given = points or (NONE, point(), CERTIFIED, shared(right=66), REFUTED, HONEST)
    found: dict[str, object] = {
        "name": "games-of-tests",
        "content_hash": "ab" * 32,
        "config": {"name": "games-of-tests", "seed": 1, "data": {"name": "digits"}},
        "about": "For tests.",
        "points": list(given),
        "environment": Environment(versions={"torch": "2"}, commit="c0ffee", device="CPU"),
        **changes,
    }
    return GameRecord.model_validate(found)


def sign(name: str, server: str, auc: float, **changes: object) -> SignWorth:
    """Of one sign against one server."""
    given: dict[str, object] = {
        "sign": name,
        "server": server,
        "auc": auc,
        "low": max(auc - 0.02, 0.0),
        "high": min(auc + 0.02, 1.0),
        "method": "bootstrap over 20 runs 95%",
        "own": auc,
        "others": auc,
        "tpr": Caught(hits=4, total=10, low=0.12, high=0.74),
        "fpr": Caught(hits=1, total=10, low=0.01, high=0.45),
    }
    return SignWorth.model_validate({**given, **changes})


def detector(*signs: SignWorth, **changes: object) -> Detector:
    """Of two signs and two servers by default."""
    given: dict[str, object] = {
        "federation": "fedsgd with 5 clients over 20 rounds, dense layers of 400 and 10 units",
        "runs": 20,
        "judged": 10,
        "honest": 40,
        "planted": 80,
        "own": 144,
        "accuracy": 0.7,
        "success": {"planted": 0.986, "one-row": 0.998},
        "signs": signs
        or (
            sign("twins", "planted", 0.99),
            sign("rewritten-row", "planted", 1.0, low=None, high=None),
            sign("twins", "one-row", 0.5),
            sign("rewritten-row", "one-row", 0.8),
        ),
        "weights": WeightSpread(
            edges=[-1.0, 0.0, 1.0],
            outlines=[Outline(server="", counts=[3, 1]), Outline(server="planted", counts=[2, 2])],
        ),
        **changes,
    }
    return Detector.model_validate(given)


def hostile_games() -> GameRecord:
    """Two hundred points whose every free text tries to break out of the page."""
    bad = HOSTILE + HOSTILE_TAG + HOSTILE_LINK + "x" * 9000
    points = [
        one.model_copy(
            update={
                "label": f"{place} {bad}",
                "settings": {f"{HOSTILE_TAG}.{place}": bad, "mechanism.name": bad},
                "records": bad,
                "mechanism": f"{HOSTILE}{place % 30}{HOSTILE_TAG}",
                "adv": one.adv.model_copy(update={"method": bad}),
            }
        )
        for place, one in enumerate([NONE, CERTIFIED, REFUTED, shared()] * 50)
    ]
    return played(
        *points,
        name=bad,
        about=bad,
        detector=hostile_detector(),
        content_hash=HOSTILE_TAG,
        config={HOSTILE: HOSTILE_TAG, "data": {"name": bad}, "deep": [{"x": bad}]},
        environment=Environment(versions={HOSTILE: bad}, commit=bad, device=bad, started=bad),
    )


def hostile_detector() -> Detector:
    """Two hundred signs whose names try to break out of the page, as far as names may be long."""
    bad = (HOSTILE_TAG + HOSTILE)[:60]
    signs = [sign(f"{place}{bad}"[:60], f"{place % 9}{bad}"[:60], 0.5) for place in range(200)]
    return detector(
        *signs,
        federation=bad,
        success={f"0{bad}"[:60]: 1.0},
        weights=WeightSpread(edges=[0.0, 1.0], outlines=[Outline(server=bad, counts=[1])] * 10),
    )
