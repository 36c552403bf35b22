"""Recorder for servers of FL-bench, whose clients hold out the audited samples."""

import copy
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedaudit.core.errors import BadInput, type_of
from fedaudit.integrations.common import fair_split_of_clients
from fedaudit.live.record import record
from fedaudit.live.recorder import Recorder


def record_server(
    server: Any,
    folder: Path | str,
    *,
    audited: int = 150,
    clients: Collection[int] = (),
    seed: int = 1,
    **settings: Any,
) -> Recorder:
    """Record a server of FL-bench, from its set-up to the end of ``server.run_experiment()``.

    For each audited client, a fair coin decides for some samples whether the client trains on
    them. Call this function after the server was created, and run within its context::

        with record_server(server, "runs/flbench"):
            server.run_experiment()

    The adversary is the server, which sees the parameters that each client uploads. Parameters that
    clients keep, such as the classifier in FedRep and FedPer, are not recorded, although FL-bench
    passes them between its objects.

    Args:
        server: A server derived from FL-bench's FedAvgServer, with ``mode`` set to "serial".
        folder: Folder for the recording.
        audited: Number of audited samples per client, of which about half are held out; at most
            half of a client's samples.
        clients: Numbers of the audited clients; all training clients if empty.
        seed: Seed of the coins.
        settings: Further arguments of :func:`fedaudit.record`, such as ``every`` or ``view``.

    Returns:
        The recorder. Close it, or use it as a context.

    Raises:
        BadInput: The server has another structure, or trains in parallel.
    """
    for name in ("aggregate_client_updates", "public_model_params", "client_data_indices"):
        if not hasattr(server, name):
            raise BadInput(
                f"{type_of(server)} has no {name!r}; give a server of FL-bench that averages models"
            )
    worker = getattr(server.trainer, "worker", None)
    if worker is None:
        raise BadInput("the server trains in parallel, with copies of its data; set mode to serial")
    chosen = sorted(clients or server.train_clients)
    if unknown := {*chosen} - {*server.train_clients}:
        raise BadInput(f"client {min(unknown)} does not train; choose among {server.train_clients}")
    split = fair_split_of_clients(
        {client: _samples(server, client) for client in chosen}, audited, seed=seed
    )
    for client in chosen:
        indices = server.client_data_indices[client]["train"]
        # The trainer has the same list.
        indices[:] = [indices[position] for position in split.train[client].tolist()]
    network = copy.deepcopy(server.model).cpu()
    trained = {name for name, _ in network.named_parameters()}
    personal = [name for name in worker.personal_params_name if name in trained]
    recorder = record(folder, network, split.audit, **{"not_uploaded": personal, **settings})
    server.aggregate_client_updates = _recorded(server, recorder, frozenset(personal))
    return recorder


def _samples(server: Any, client: int) -> tuple[Tensor, Tensor]:
    """Return features and classes of a client's training samples, as in evaluations."""
    server.dataset.eval()
    items = [server.dataset[index] for index in server.client_data_indices[client]["train"]]
    server.dataset.train()
    features, classes = zip(*items, strict=True)
    return torch.stack(features), torch.stack([torch.as_tensor(label) for label in classes])


def _recorded(
    server: Any, recorder: Recorder, personal: Collection[str]
) -> Callable[[Mapping[int, Mapping[str, Any]]], Any]:
    """Return the server's aggregation, preceded and followed by the recorder."""
    aggregate = server.aggregate_client_updates

    def call(packages: Mapping[int, Mapping[str, Any]]) -> Any:
        sent = _copied(server.public_model_params, personal)
        uploads = {
            client: _uploaded(package, sent, personal) for client, package in packages.items()
        }
        weights = {client: float(package["weight"]) for client, package in packages.items()}
        result = aggregate(packages)
        recorder.round(
            server.current_epoch + 1,
            sent=sent,
            uploads=uploads,
            weights=weights,
            selected=list(server.selected_clients),
            after=_copied(server.public_model_params, personal),
        )
        return result

    return call


def _uploaded(
    package: Mapping[str, Any], sent: Mapping[str, Tensor], personal: Collection[str]
) -> dict[str, Tensor]:
    """Return the parameters that a client uploads; some servers receive differences."""
    if "model_params_diff" in package:
        differences = _copied(package["model_params_diff"], personal)
        return {name: sent[name] - value for name, value in differences.items()}
    return _copied(package["regular_model_params"], personal)


def _copied(values: Mapping[str, Tensor], personal: Collection[str]) -> dict[str, Tensor]:
    return {
        name: value.detach().cpu().clone() for name, value in values.items() if name not in personal
    }
