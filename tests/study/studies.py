"""A study that takes a second, for tests."""

from fedaudit.study.config import Study
from fedaudit.study.values import study_from


def small_study(**changes: object) -> Study:
    """The study with some sections' settings replaced."""
    values: dict[str, dict[str, object]] = {
        "partition": {"clients": 4},
        "training": {"rounds": 4, "epochs": 2, "batch_size": 10},
        "audit": {"fair": 90, "every": 2},
        "figures": {"permutations": 20, "blind_classifier": False},
    }
    plain: dict[str, object] = {"name": "small"}
    for key, value in changes.items():
        if isinstance(value, dict) and key in values:
            values[key] |= value
        else:
            plain[key] = value
    return study_from({**values, **plain})
