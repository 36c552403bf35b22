"""Ledger of a round of NVFlare: tasks and results, passed to a recorder at its end."""

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
from fedaudit.integrations.common import OpenRound, refuse_not_finite
from fedaudit.live.clients import ClientRef, is_of_name, refuse_mixed_references
from fedaudit.live.recorder import Recorder
from fedaudit.live.weights import Array, tensor_of

Arrays: TypeAlias = Mapping[str, Array]

_LAST_NUMBER = re.compile(r"(?<![0-9])([0-9]{1,15})\Z")
Makes = Callable[[Path], Recorder]
_NAMED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


class Upload(NamedTuple):
    """Upload of a site.

    Attributes:
        arrays: Arrays by name.
        difference: Whether they are a difference from the model that was sent.
        weight: Weight in the average that the site reports; 1 by default.
        reported: Training loss and accuracy that the site reports.
    """

    arrays: Arrays
    difference: bool = False
    weight: float = 1.0
    reported: Mapping[str, float] = {}


@dataclass
class _Page(OpenRound[str]):
    sites: dict[str, str] = field(default_factory=dict)
    sent: dict[str, Arrays] = field(default_factory=dict)


class NvflareLedger:
    """Ledger of one round at a time.

    The ledger never stops training: the recorder warns of faults, and raises only if it is strict.
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
        self._page: _Page | None = None
        self._begun = False

    @property
    def strict(self) -> bool:
        """True if a round that cannot be recorded stops the training."""
        return self._recorder.strict

    @property
    def begun(self) -> bool:
        """True if a site was sent a task."""
        return self._begun

    @property
    def reads_uploads(self) -> bool:
        """True if the adversary sees uploads."""
        return self._recorder.sees_uploads

    def ask(
        self, index: int, task: str, site: str, model: Arrays | None, *, fault: str = ""
    ) -> None:
        """Note that a site is sent its task, or why that cannot be read.

        Another round that is still open is ended first. Each site has its own task number.
        """
        if self._page is not None and self._page.index != index:
            self.close(None if fault else model)
        if not self._begun:
            self._begun = True
            self._recorder.begin_at(index, "a run of NVFlare")
        page = self._page = self._page or _Page(index)
        page.sites[task] = site
        if model is None or fault:
            page.excluded[task] = fault or "it was sent no model"
            return
        try:
            page.sent[task] = _once(model, page.sent)
        except ValueError as error:
            page.excluded[task] = f"what it was sent cannot be read: {error}"

    def hear(self, task: str, upload: Upload | None, *, fault: str = "") -> None:
        """Note a task's result, or why it cannot be read; ignore those of earlier rounds."""
        page = self._page
        if page is None or task not in page.sites or task in page.answered:
            return
        page.answered.add(task)
        page.lost.pop(task, None)
        if upload is not None and self.reads_uploads:
            try:
                model = page.uploads[task] = _whole(upload, page.sent.get(task))
                refuse_not_finite(model, lambda: page.sent.get(task))
                page.weights[task] = upload.weight
                page.reported[task] = upload.reported if self._reads_metrics else {}
            # Any error: an audit must not stop the training that it observes.
            except Exception as error:
                fault = str(error)
        if fault:
            page.excluded.setdefault(task, f"its upload cannot be read: {fault}")

    def lose(self, task: str, reason: str) -> None:
        """Note that a task ended in an error."""
        page = self._page
        if page is not None and task in page.sites and task not in page.answered:
            page.lost[task] = reason

    def close(self, after: Arrays | None = None) -> None:
        """End the round; ``after`` is the model that it ended with, if known."""
        page, self._page = self._page, None
        if page is None:
            return
        clients, unknown = self._clients(page)
        chosen, excluded = _sorted(page, clients)
        fault = self._fault(page)
        if self.reads_uploads and not chosen:
            reasons = (f"client {client}: {why}" for client, why in excluded.items())
            fault = fault or next(reasons, unknown)
        models: dict[ClientRef, Arrays] = {c: page.sent[task] for c, task in chosen.items()}
        if not self.reads_uploads:
            models = dict(zip([0], page.sent.values(), strict=False))
        page.tell(
            self._recorder,
            page.index,
            page.sites,
            clients,
            chosen,
            models,
            after=after,
            fault=fault,
            excluded=excluded,
            note=unknown,
        )

    def end(self) -> None:
        """End an open round and the recording."""
        try:
            self.close()
        finally:
            self._recorder.close()

    def _clients(self, page: _Page) -> tuple[dict[str, ClientRef], str]:
        clients: dict[str, ClientRef] = {}
        fault = ""
        targets = self._recorder.recording.targets
        for task, site in page.sites.items():
            try:
                client = client_of(site, self._sites, targets)
                refuse_mixed_references([client], targets)
                clients[task] = client
            except BadInput as error:
                fault = fault or str(error)
        return clients, fault

    def _fault(self, page: _Page) -> str:
        if not page.sent:
            return next(iter(page.excluded.values()), "no model was sent")
        if not page.answered:
            reasons = sorted({reason for reason in page.lost.values() if reason})
            errors = f" ({len(page.lost)} errors, such as {reasons[0]!r})" if reasons else ""
            return f"no site answered{errors}"
        return ""


def _sorted(
    page: _Page, clients: Mapping[str, ClientRef]
) -> tuple[dict[ClientRef, str], dict[ClientRef, str]]:
    sites: dict[ClientRef, set[str]] = {}
    for task, client in clients.items():
        sites.setdefault(client, set()).add(page.sites[task])
    tasks, excluded = dict[ClientRef, str](), dict[ClientRef, str]()
    for task, client in clients.items():
        if task not in page.answered:
            continue
        if len(sites[client]) > 1:
            excluded[client] = (
                f"several sites are client {client}: {', '.join(sorted(sites[client]))}; give each "
                "its own number or name with sites={name: client}"
            )
        elif task in page.excluded:
            excluded[client] = page.excluded[task]
        elif task in page.uploads:
            tasks[client] = task
    return {c: task for c, task in tasks.items() if c not in excluded}, excluded


def client_of(
    site: str, sites: Mapping[str, ClientRef] | None, audited: Collection[ClientId] = ()
) -> ClientRef:
    """Return the client of a site.

    Without ``sites``, a site is the client of its name where audited clients have names, and
    otherwise that of the number its name ends with.
    """
    if sites is not None:
        if site not in sites:
            raise BadInput(f"{site!r} is not among the sites that were given: {', '.join(sites)}")
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


def _whole(upload: Upload, sent: Arrays | None) -> Arrays:
    """Return a copy of the model after training, as others may change arrays in place."""
    if not upload.difference:
        return {name: _copy(name, value) for name, value in upload.arrays.items()}
    if sent is None:
        raise ValueError("it is a difference, and the model that was sent is unknown")
    unknown = sorted(upload.arrays.keys() - sent.keys())
    if unknown:
        raise ValueError(f"it is a difference that has {unknown[0]!r}, which was not sent")
    changed: dict[str, Array] = {}
    for name, base in sent.items():
        # Parameters that are missing in a difference have not changed.
        value = _copy(name, upload.arrays[name]) if name in upload.arrays else None
        if value is not None and tuple(value.shape) != tuple(base.shape):
            raise ValueError(
                f"it has {name!r} of shape {tuple(value.shape)}, and {tuple(base.shape)} was sent"
            )
        changed[name] = base if value is None else tensor_of(base, name) + tensor_of(value, name)
    return changed


def _once(model: Arrays, others: Mapping[str, Arrays]) -> Arrays:
    """Return a copy of the model, shared between sites that were sent the same."""
    for other in others.values():
        if _same(model, other):
            return other
    return {name: _copy(name, value) for name, value in model.items()}


def _same(left: Arrays, right: Arrays) -> bool:
    return left.keys() == right.keys() and all(
        isinstance(value, type(right[name])) and np.array_equal(value, right[name])
        for name, value in left.items()
    )


def _copy(name: str, value: object) -> Array:
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, np.ndarray | np.generic):
        return np.array(value)
    raise ValueError(f"{name!r} is not an array, but of the type {type(value).__name__}")


def name_of(makes: Makes | str) -> str:
    """Return a function's name as ``module:function``; raise if it cannot be imported by it."""
    if isinstance(makes, str):
        name = makes
    else:
        name = f"{getattr(makes, '__module__', '')}:{getattr(makes, '__qualname__', '')}"
    if not _NAMED.fullmatch(name) or name.startswith("__main__:"):
        raise BadInput(
            f"the recorder is created in the server's process, which cannot find {name!r}; give a "
            'function of a module (not of the script itself), or its name as "module:function"'
        )
    return name


def made(name: str, folder: Path) -> Recorder:
    """Return the recorder that a function, given by name, makes for a folder."""
    module, _, function = name_of(name).partition(":")
    try:
        makes = getattr(import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise BadInput(
            f"{name!r} is not found in the server's process ({error}); add its file to the job "
            "with add_server_file"
        ) from error
    recorder: object = makes(folder)
    if not isinstance(recorder, Recorder):
        raise BadInput(f"{name!r} returns {type_of(recorder)}; return a fedaudit recorder")
    if recorder.uploads != "models":
        raise BadInput(
            f"{name!r} returns a recorder of {recorder.uploads}; omit uploads, since differences "
            "are added to the model that was sent"
        )
    return recorder
