"""What makes two studies, or two runs, the same: everything that changes a result."""

import hashlib
import json

from fedaudit.study.config import Study

_FOR_PEOPLE = {"about", "hours"}
_AFTERWARDS = {"name", "seeds", "figures", "attacks"}


def settings_of(study: Study) -> dict[str, object]:
    """All settings that change a result, as plain values."""
    return study.model_dump(mode="json", exclude=_FOR_PEOPLE)


def run_key(study: Study, seed: int, kind: str = "cpu") -> str:
    """Names one run's training and what was seen of it; attacks and figures come afterwards.

    Args:
        study: Its settings.
        seed: Of the run.
        kind: Of device; another calculates other last digits.
    """
    settings = study.model_dump(mode="json", exclude=_FOR_PEOPLE | _AFTERWARDS)
    # A run on the CPU keeps the name it had before there were others.
    device = [] if kind == "cpu" else [kind]
    text = json.dumps([settings, seed, *device], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
