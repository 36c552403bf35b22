"""Process that runs an attack on the signals of recordings, without access to the answers.

The parent process writes lines of JSON to standard input. The first has the name of the attack,
and the folder in which modules are searched. Each further line has the file of a recording's
signals, and the file for the scores. The reply to each line is a line of JSON with an error, which
is empty on success.
"""

import inspect
import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TextIO, TypeAlias, cast

import torch

from fedaudit.attacks import ATTACKS, SOURCE_ATTACKS
from fedaudit.attacks.base import Attack
from fedaudit.benchmark.suite import Signals, checked_scores, read_signals
from fedaudit.core.errors import BadInput, FedauditError, suggest_names, type_of
from fedaudit.core.files import write_atomically
from fedaudit.core.importing import add_module_folders, code_named_in, look_up

ScoreFunction: TypeAlias = Callable[[Signals], object]
"""Function that returns one score for each sample of a recording."""

_DEFAULT_NAME = "attack"


def main() -> None:
    """Answer requests until standard input is closed."""
    requests, replies = _own_streams()
    attack = json.loads(requests.readline())
    reference, folder = attack["attack"], Path(attack["folder"])
    _reply("", replies)
    score: ScoreFunction | None = None
    for line in requests:
        request, error = json.loads(line), ""
        try:
            score = score or load_attack(reference, folder)
            signals = read_signals(Path(request["signals"]))
            scores = checked_scores(score(signals), signals.samples)
            write_atomically(Path(request["scores"]), scores.astype("<f8").tobytes())
        except FedauditError as refusal:
            error = str(refusal)
        # The user's code may raise anything, or exit.
        except (Exception, SystemExit) as failure:
            error = describe_failure(failure, Path(reference.partition(".py:")[0]).stem)
        _reply(error, replies)


def _reply(error: str, replies: TextIO) -> None:
    print(json.dumps({"error": error}), file=replies, flush=True)


def _own_streams() -> tuple[TextIO, TextIO]:
    """Return streams for requests and replies that the code of an attack does not use.

    What the attack prints goes to standard error, and its standard input is empty.
    """
    requests, replies = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    return requests, replies


def load_attack(reference: str, folder: Path) -> ScoreFunction:
    """Load an attack, which runs the code of its file or module.

    Args:
        reference: ``file.py``, ``file.py:name``, ``module:object`` or a name of the catalogue.
        folder: Folder in which modules are searched after the installed modules.

    Raises:
        BadInput: There is no such attack, or it needs more than the signals of a recording.
    """
    path, colon, name = reference.rpartition(":")
    if not colon or not path.endswith(".py"):
        path, name = reference, ""
    if path.endswith(".py"):
        return _as_function(_attack_in(_module_at(Path(path)), name), reference)
    with code_named_in(reference, trusted=True, folder=folder):
        part: object = look_up(
            "attack",
            reference,
            cast("Mapping[str, object]", {**ATTACKS, **SOURCE_ATTACKS}),
            expected="a function of signals and target, or a fedaudit.attacks.Attack",
            is_valid=lambda value: callable(value) or isinstance(value, Attack),
        )
    return _as_function(part, reference)


def _module_at(path: Path) -> ModuleType:
    spec = spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise BadInput(f"{path} is not a Python file; give the file of an attack")
    add_module_folders([str(path.parent)])
    module = module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _attack_in(module: ModuleType, name: str) -> object:
    """Return the object with a name, the one named "attack", or else the only candidate."""
    candidates = {
        key: value
        for key, value in vars(module).items()
        if not key.startswith("_") and _may_be_attack(value, module)
    }
    if name or _DEFAULT_NAME in vars(module):
        name = name or _DEFAULT_NAME
        if name not in vars(module):
            hint = suggest_names(name, candidates)
            raise BadInput(f"{module.__file__} has no {name!r}; {hint}check the spelling")
        return vars(module)[name]
    if len(candidates) != 1:
        found = ", ".join(sorted(candidates)) or "no function"
        raise BadInput(
            f"{module.__file__} has {found}, so that it is unclear which is the attack; name it "
            f"{_DEFAULT_NAME!r}, or give file.py:name"
        )
    return next(iter(candidates.values()))


def _may_be_attack(value: object, module: ModuleType) -> bool:
    is_function = inspect.isfunction(value) and value.__module__ == module.__name__
    return is_function or isinstance(value, Attack)


def _as_function(part: object, reference: str) -> ScoreFunction:
    if isinstance(part, type) and issubclass(part, Attack):
        part = part()  # type: ignore[call-arg]
    if isinstance(part, Attack):
        return _score_by_attack(part, reference)
    if not callable(part):
        raise BadInput(
            f"{reference} is {type_of(part)}; give a function of signals and target, or a "
            "fedaudit.attacks.Attack"
        )
    function = part
    if _takes_references(function):
        return lambda signals: function(signals.measured, signals.target, signals.references)
    return lambda signals: function(signals.measured, signals.target)


def _takes_references(function: Callable[..., object]) -> bool:
    """Return True if a function takes a third argument for reference federations."""
    try:
        inspect.signature(function).bind({}, 0, [])
    except (TypeError, ValueError):
        return False
    return True


def _score_by_attack(attack: Attack, reference: str) -> ScoreFunction:
    unsupported = {
        "infers the source of samples": attack.infers_source,
        "must be fitted on a shadow federation": attack.learns,
        "needs to know the rounds that a defense assigns": attack.needs_side_information,
    }
    for reason, applies in unsupported.items():
        if applies:
            raise BadInput(
                f"{reference} {reason}, but recordings contain only the signals of the audited "
                "federation and of reference federations; score another attack"
            )

    def score(signals: Signals) -> object:
        never = torch.zeros(len(signals.references), signals.samples, dtype=torch.bool)
        fitted = attack.with_references(signals.references, signals.target, never)
        return fitted.scores(signals.measured, signals.target)

    return score


def describe_failure(error: BaseException, module: str) -> str:
    """Return an error of an attack in one sentence, with the line of the attack's file."""
    frames = traceback.extract_tb(error.__traceback__)
    in_file = [frame for frame in frames if Path(frame.filename).stem == module] or frames[-1:]
    where = f" ({Path(in_file[-1].filename).name}, line {in_file[-1].lineno})" if in_file else ""
    text = " ".join(str(error).split())[:300]
    return f"the attack raised {type(error).__name__}: {text}{where}; correct it, and start again"


if __name__ == "__main__":
    main()
