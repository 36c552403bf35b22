"""The one place where the report reads a record: its types, and text made safe to show.

All other modules of this package take the parts of a record from here, so that a change of the
record's schema is a change of this module alone. Nothing is shown before it went through
:func:`cleaned`.
"""

import re
from typing import TypeVar

from pydantic import BaseModel

from fedaudit.core.metric_names import HEADLINE_METRICS, rate_of
from fedaudit.report.grid import clean
from fedaudit.results.cluster_groups import (
    choices,
    clients_of,
    groups_by_size,
    models_of_groups,
    used_by,
)
from fedaudit.results.clusters import EVERYBODY, ClusterResult, ClusterRound, ModelState
from fedaudit.results.comparison import (
    EVERY_ATTACK,
    STRONGEST_ATTACK,
    Comparison,
    Difference,
    Entry,
    FigureEntry,
    Front,
    Row,
)
from fedaudit.results.detector import (
    DETECTED,
    FALSE_ALARMS,
    OTHERS_AUC,
    OWN_AUC,
    SIGN_AUC,
    Detection,
    WeightSpread,
)
from fedaudit.results.estimate import AT_THRESHOLD, Estimate, Interval, Test, tests_of
from fedaudit.results.games import (
    CLAIMED_SUCCESS,
    DISTANCE,
    EPOCHS,
    EXPECTED_SUCCESS,
    FIT,
    HELD_OUT,
    PLANTED_SHARE,
    PREDICTED_NEGATIVES,
    SIGN_SUCCESS,
    InRounds,
    PointPlayed,
    Rate,
    Spread,
    TargetCertificate,
)
from fedaudit.results.guessing import (
    above_chance,
    alpha_of,
    by_interval_alone,
    by_test_alone,
    near_guessing,
)
from fedaudit.results.metrics import (
    ACCURACY,
    AGREEMENT,
    CHANCE_VIOLATIONS,
    CLIENT_ESTIMATE,
    CLIENT_RISK,
    COUNTS,
    ESTIMATE_ERROR,
    EXPECTED_VIOLATIONS,
    GENERALISATION_GAP,
    MODEL_ESTIMATE,
    MODEL_RISK,
    MOVED,
    MOVED_AT_THE_END,
    OWN_MODEL,
    SURE_VIOLATIONS,
    TEST_ACCURACY,
    TRAIN_ACCURACY,
    VIOLATIONS,
)
from fedaudit.results.older import settled
from fedaudit.results.record import (
    AccuracyByRound,
    AttackRow,
    ControlResult,
    Curve,
    Environment,
    ExposedSample,
    Histogram,
    Record,
    Trajectory,
    UsageRow,
)
from fedaudit.results.sources import LABEL_BASELINE, LABELS, SourceResult

__all__ = [
    "ACCURACY",
    "AGREEMENT",
    "AT_THRESHOLD",
    "CHANCE_VIOLATIONS",
    "CLAIMED_SUCCESS",
    "CLIENT_ESTIMATE",
    "CLIENT_RISK",
    "COUNTS",
    "DETECTED",
    "DISTANCE",
    "EPOCHS",
    "ESTIMATE_ERROR",
    "EVERYBODY",
    "EVERY_ATTACK",
    "EXPECTED_SUCCESS",
    "EXPECTED_VIOLATIONS",
    "FALSE_ALARMS",
    "FIT",
    "GENERALISATION_GAP",
    "HEADLINE_METRICS",
    "HELD_OUT",
    "LABELS",
    "LABEL_BASELINE",
    "MODEL_ESTIMATE",
    "MODEL_RISK",
    "MOVED",
    "MOVED_AT_THE_END",
    "OTHERS_AUC",
    "OWN_AUC",
    "OWN_MODEL",
    "PLANTED_SHARE",
    "PREDICTED_NEGATIVES",
    "SIGHTS",
    "SIGN_AUC",
    "SIGN_SUCCESS",
    "STRONGEST_ATTACK",
    "SURE_VIOLATIONS",
    "TEST_ACCURACY",
    "TRAIN_ACCURACY",
    "VIOLATIONS",
    "AccuracyByRound",
    "AttackRow",
    "ClusterResult",
    "ClusterRound",
    "Comparison",
    "ControlResult",
    "Curve",
    "Detection",
    "Difference",
    "Entry",
    "Environment",
    "Estimate",
    "ExposedSample",
    "FigureEntry",
    "Front",
    "Histogram",
    "InRounds",
    "Interval",
    "ModelState",
    "PointPlayed",
    "Rate",
    "Record",
    "Row",
    "SourceResult",
    "Spread",
    "TargetCertificate",
    "Test",
    "Trajectory",
    "UsageRow",
    "WeightSpread",
    "above_chance",
    "alpha_of",
    "by_interval_alone",
    "by_test_alone",
    "choices",
    "cleaned",
    "clients_of",
    "groups_by_size",
    "models_of_groups",
    "near_guessing",
    "rate_of",
    "settled",
    "tests_of",
    "used_by",
]

SIGHTS = {
    "predictions": "model outputs",
    "global_model": "the model sent out",
    "update": "how training changed it",
    "uploads": "each client's upload",
    "rounds": "several rounds",
    "auxiliary_data": "data of the adversary's own",
    "chooses_model": "the choice of the model sent out",
}
"""Things that an adversary sees and that attacks need."""

_IN_NOTES = {key.upper(): words for key, words in SIGHTS.items()} | {
    "other_client": "other clients'"
}
_NOTED = re.compile(rf"\b({'|'.join(_IN_NOTES)})\b")

Model = TypeVar("Model", bound=BaseModel)

_AS_IT_IS = {"config"}
"""A study's settings are shown as a study file, which escapes what it must."""
_NUMBERS = {float, int, bool, type(None)}
"""Most of a record, which needs no look at each."""


def cleaned(model: Model) -> Model:
    """A record or comparison without control or direction characters in any text.

    Notes, which readers of all kinds see, get words in the place of the program's own names.

    Names that a page or a terminal shows must not turn round the text beside them, whichever
    field they stand in, so nothing of a record is shown before it went through here. What is
    clean already is given back as it is: nearly all of a record, whose copy would take long.
    """
    update = {
        name: safe
        for name, value in vars(model).items()
        if type(value) not in _NUMBERS
        and name not in _AS_IT_IS
        and (safe := _in_words(value) if name == "note" else _cleaned(value)) is not value
    }
    return model.model_copy(update=update) if update else model


def _in_words(note: object) -> object:
    return in_words(clean(note)) if isinstance(note, str) else _cleaned(note)


def _cleaned(value: object) -> object:
    """The value itself where nothing in it changes."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, BaseModel):
        return cleaned(value)
    if isinstance(value, list | tuple):
        if _NUMBERS.issuperset(map(type, value)):
            return value
        parts = [_cleaned(part) for part in value]
        same = all(part is old for part, old in zip(parts, value, strict=True))
        return value if same else type(value)(parts)
    if isinstance(value, dict):
        return {_cleaned(key): _cleaned(part) for key, part in value.items()}
    return value


def in_words(note: str) -> str:
    """A note with words in the place of names that only the program's own text has."""
    return _NOTED.sub(lambda found: _IN_NOTES[found[1]], note)
