"""Refusals of studies in Python's words: the argument behind each setting that one names."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from fedaudit.core.errors import FedauditError
from fedaudit.study.settings.games import GameStudy
from fedaudit.study.settings.optional import OPTIONAL
from fedaudit.study.settings.sections import Study

_ARGUMENTS = {
    **{name: kind.python_name() for name, kind in OPTIONAL.items()},
    "audit": "fedaudit.Audit",
    "figures": "fedaudit.Figures",
    "risk": "fedaudit.Risk",
    "shift": "fedaudit.Shift",
    "training": "fedaudit.Training",
    "data": "data",
    "partition": "clients",
    "model": "model",
    "algorithm": "algorithm",
    "defense": "defenses",
    "server": "server",
    "game": "fedaudit.Game",
    "neuron": "fedaudit.Neuron",
    "rounds": "fedaudit.Rounds",
    "detector": "fedaudit.Detector",
    "records": "fedaudit.Games",
    "mechanism": "mechanism",
}
"""What says in Python what a table of a study file says: a class of settings, or an argument."""

_SETTING = re.compile(rf"(?<![\w.])({'|'.join(_ARGUMENTS)})\.(\w+)(?:\.(\w+))?")


@contextmanager
def in_python() -> Iterator[None]:
    """Inside, a refusal that names settings of study files says how they are given in Python."""
    try:
        yield
    except FedauditError as refusal:
        said = str(refusal)
        named = dict.fromkeys(found for found in _SETTING.finditer(said) if _is_setting(found))
        meant = dict.fromkeys(f"{one[0]} is {_argument(one)}" for one in named)
        if meant:
            refusal.args = (f"{said} (in Python, {', '.join(meant)})",)
        raise


def _is_setting(found: re.Match[str]) -> bool:
    section = {**GameStudy.model_fields, **Study.model_fields}[found[1]].annotation
    fields = getattr(section, "model_fields", None)
    return fields is None or found[2] in fields


def _argument(found: re.Match[str]) -> str:
    section, setting, option = found.groups()
    argument = _ARGUMENTS[section]
    if argument.startswith("fedaudit."):
        return f"{argument}({setting}=...)"
    return f"{option}= of what {argument}= is" if option else f"said by {argument}="
