"""Collects the tasks and results of an NVFlare round, and passes them to the recorder."""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
import torch

from fedaudit.core.errors import BadInput, type_of
from fedaudit.core.values import ClientId
from fedaudit.integrations.common import OpenRound, raise_if_not_finite
from fedaudit.live.clients import ClientRef, is_of_name, raise_if_mixed_references
from fedaudit.live.recorder import Recorder
from fedaudit.live.weights import Array, as_cpu_tensor

Arrays: TypeAlias = Mapping[str, Array]

_LAST_NUMBER = re.compile(r"(?<![0-9])([0-9]{1,15})\Z")
RecorderFactory = Callable[[Path], Recorder]
"""Function that creates the recorder for a folder."""
_FACTORY_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


class Upload(NamedTuple):
    """Upload of a site.

    Attributes:
        arrays: Arrays by name.
        difference: Whether the arrays are the difference from the model that was sent.
        weight: Weight in the average that the site reports; 1 by default.
        reported: Training loss and accuracy that the site reports.
    """

    arrays: Arrays
    difference: bool = False
    weight: float = 1.0
    reported: Mapping[str, float] = {}


@dataclass
class _OpenRound(OpenRound[str]):
    """Results of the round in progress, with the site and the sent model of each task."""

    sites: dict[str, str] = field(default_factory=dict)
    sent: dict[str, Arrays] = field(default_factory=dict)


class NvflareRoundCollector:
    """Collector that passes NVFlare's rounds to a recorder, one at a time.

    NVFlare reports each task and each result separately. The collector stores them until the round
    ends, and then passes the clients' models to the recorder, which expects whole rounds. The
    collector never stops training: the recorder warns of faults, and raises errors only if it is
    strict.
    """

    def __init__(
        self,
        recorder: Recorder,
        sites: Mapping[str, ClientRef] | None = None,
        *,
        reads_metrics: bool = True,
    ) -> None:
        self._recorder, self._sites = recorder, sites
        self._reads_metrics = reads_metrics
        self._round: _OpenRound | None = None
        self._has_begun = False

    @property
    def strict(self) -> bool:
        """True if a round that cannot be recorded stops the training."""
        return self._recorder.strict

    @property
    def has_begun(self) -> bool:
        """True if a site was sent a task."""
        return self._has_begun

    @property
    def reads_uploads(self) -> bool:
        """True if the adversary sees uploads."""
        return self._recorder.sees_uploads

    def add_task(
        self, index: int, task: str, site: str, model: Arrays | None, *, fault: str = ""
    ) -> None:
        """Add a task with the model that a site is sent, or the fault if it cannot be read.

        Another round that is still open is ended first.
        """
        if self._round is not None and self._round.index != index:
            self.close(None if fault else model)
        if not self._has_begun:
            self._has_begun = True
            self._recorder.check_first_round(index, "a run of NVFlare")
        round = self._round = self._round or _OpenRound(index)
        round.sites[task] = site
        if model is None or fault:
            round.excluded[task] = fault or "it was sent no model"
            return
        try:
            round.sent[task] = _shared_copy(model, round.sent)
        except ValueError as error:
            round.excluded[task] = f"the model sent to it cannot be read: {error}"

    def add_result(self, task: str, upload: Upload | None, *, fault: str = "") -> None:
        """Add the result of a task, or the fault; results of earlier rounds are ignored."""
        round = self._round
        if round is None or task not in round.sites or task in round.answered:
            return
        round.answered.add(task)
        round.lost.pop(task, None)
        if upload is not None and self.reads_uploads:
            sent = round.sent.get(task)
            try:
                model = round.uploads[task] = _trained_model(upload, sent)
                raise_if_not_finite(model, lambda: sent)
                round.weights[task] = upload.weight
                round.reported[task] = upload.reported if self._reads_metrics else {}
            # Catch any error: an audit must not stop the training that it observes.
            except Exception as error:
                fault = str(error)
        if fault:
            round.excluded.setdefault(task, f"its upload cannot be read: {fault}")

    def add_error(self, task: str, reason: str) -> None:
        """Add the error in which a task ended."""
        round = self._round
        if round is not None and task in round.sites and task not in round.answered:
            round.lost[task] = reason

    def close(self, after: Arrays | None = None) -> None:
        """End the round; ``after`` is the global model after the round, if it is known."""
        round, self._round = self._round, None
        if round is None:
            return
        clients, unattributed_fault = self._clients(round)
        chosen, unreadable = _choose(round, clients)
        fault = _fault(round)
        if self.reads_uploads and not chosen:
            reasons = (f"client {client}: {why}" for client, why in unreadable.items())
            fault = fault or next(reasons, unattributed_fault)
        models: dict[ClientRef, Arrays] = {c: round.sent[task] for c, task in chosen.items()}
        if not self.reads_uploads:
            # In a view without uploads, client 0 stands for all clients.
            models = dict(zip([0], round.sent.values(), strict=False))
        round.pass_to(
            self._recorder,
            round.index,
            round.sites,
            clients,
            chosen,
            models,
            after=after,
            fault=fault,
            unreadable=unreadable,
            unattributed_fault=unattributed_fault,
        )

    def end(self) -> None:
        """End an open round and the recording."""
        try:
            self.close()
        finally:
            self._recorder.close()

    def _clients(self, round: _OpenRound) -> tuple[dict[str, ClientRef], str]:
        """Return the client of each task, and the first error of a site without a client."""
        clients: dict[str, ClientRef] = {}
        fault = ""
        targets = self._recorder.recording.targets
        for task, site in round.sites.items():
            try:
                client = client_of(site, self._sites, targets)
                raise_if_mixed_references([client], targets)
                clients[task] = client
            except BadInput as error:
                fault = fault or str(error)
        return clients, fault


def _fault(round: _OpenRound) -> str:
    if not round.sent:
        return next(iter(round.excluded.values()), "no model was sent")
    if not round.answered:
        reasons = sorted({reason for reason in round.lost.values() if reason})
        errors = f" ({len(round.lost)} errors, such as {reasons[0]!r})" if reasons else ""
        return f"no site answered{errors}"
    return ""


def _choose(
    round: _OpenRound, clients: Mapping[str, ClientRef]
) -> tuple[dict[ClientRef, str], dict[ClientRef, str]]:
    """Return the task of each client to measure, and the faults of other clients."""
    sites: dict[ClientRef, set[str]] = {}
    for task, client in clients.items():
        sites.setdefault(client, set()).add(round.sites[task])
    tasks, unreadable = dict[ClientRef, str](), dict[ClientRef, str]()
    for task, client in clients.items():
        if task not in round.answered:
            continue
        if len(sites[client]) > 1:
            unreadable[client] = (
                f"several sites are client {client}: {', '.join(sorted(sites[client]))}; give each "
                "its own number or name with sites={name: client}"
            )
        elif task in round.excluded:
            unreadable[client] = round.excluded[task]
        elif task in round.uploads:
            tasks[client] = task
    return {c: task for c, task in tasks.items() if c not in unreadable}, unreadable


def client_of(
    site: str, sites: Mapping[str, ClientRef] | None, audited: Collection[ClientId] = ()
) -> ClientRef:
    """Return the client of a site.

    Without ``sites``, the client has the name of the site if audited clients have names. Otherwise
    it has the number at the end of the site's name.
    """
    if sites is not None:
        if site not in sites:
            raise BadInput(f"{site!r} is not in sites, which has {', '.join(sites)}; add it")
        return sites[site]
    if site and any(map(is_of_name, audited)):
        return site
    match = _LAST_NUMBER.search(site)
    if match is None:
        raise BadInput(
            f"the name {site!r} does not end with the number of a client; name audited clients "
            "like their sites, or give the client of each site as sites={name: client}"
        )
    return int(match[1])


def _trained_model(upload: Upload, sent: Arrays | None) -> Arrays:
    """Return a copy of the model after training, since other code may change arrays in place."""
    if not upload.difference:
        return {name: _copy(name, value) for name, value in upload.arrays.items()}
    if sent is None:
        raise ValueError("it is a difference, and the model that was sent is unknown")
    unknown = sorted(upload.arrays.keys() - sent.keys())
    if unknown:
        raise ValueError(f"it is a difference that has {unknown[0]!r}, which was not sent")
    # Parameters that are missing in a difference have not changed.
    trained: dict[str, Array] = {**sent}
    for name, array in upload.arrays.items():
        base, change = sent[name], _copy(name, array)
        if tuple(change.shape) != tuple(base.shape):
            raise ValueError(
                f"it has {name!r} of shape {tuple(change.shape)}, and {tuple(base.shape)} was sent"
            )
        trained[name] = as_cpu_tensor(base, name) + as_cpu_tensor(change, name)
    return trained


def _shared_copy(model: Arrays, others: Mapping[str, Arrays]) -> Arrays:
    """Return a copy of the model; sites that were sent the same model share one copy."""
    for other in others.values():
        if _are_equal(model, other):
            return other
    return {name: _copy(name, value) for name, value in model.items()}


def _are_equal(left: Arrays, right: Arrays) -> bool:
    return left.keys() == right.keys() and all(
        isinstance(value, type(right[name])) and np.array_equal(value, right[name])
        for name, value in left.items()
    )


def _copy(name: str, value: object) -> Array:
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, np.ndarray | np.generic):
        return np.array(value)
    raise ValueError(f"{name!r} is not an array, but {type_of(value)}")


def factory_name(factory: RecorderFactory | str) -> str:
    """Return a function's name as ``module:function``; raise if this name cannot be imported."""
    if isinstance(factory, str):
        name = factory
    else:
        name = f"{getattr(factory, '__module__', '')}:{getattr(factory, '__qualname__', '')}"
    if not _FACTORY_NAME.fullmatch(name) or name.startswith("__main__:"):
        raise BadInput(
            f"the recorder is created in the server's process, which cannot find {name!r}; give a "
            'function of a module (not of the script itself), or its name as "module:function"'
        )
    return name


def create_recorder(name: str, folder: Path) -> Recorder:
    """Import a factory by its name, and return its recorder for a folder."""
    module, _, function = factory_name(name).partition(":")
    try:
        factory = getattr(import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise BadInput(
            f"{name!r} is not found in the server's process ({error}); add its file to the job "
            "with add_server_file"
        ) from error
    recorder: object = factory(folder)
    if not isinstance(recorder, Recorder):
        raise BadInput(f"{name!r} returns {type_of(recorder)}; return a fedaudit recorder")
    if recorder.uploads != "models":
        raise BadInput(
            f"{name!r} returns a recorder with uploads={recorder.uploads!r}; omit uploads, since "
            "differences are added to the sent model before they are recorded"
        )
    return recorder
