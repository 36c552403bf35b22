"""Checkpoints of a small federation, as training loops save them."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from fedaudit.live.checkpoints.record import from_checkpoints
from tests.live.federation import ROUNDS, data, network, recorder, rounds

Save = Callable[[Mapping[str, Tensor], Path], None]


def as_torch(weights: Mapping[str, Tensor], path: Path) -> None:
    torch.save(dict(weights), path.with_suffix(".pt"))


def as_module(weights: Mapping[str, Tensor], path: Path) -> None:
    net = network()
    net.load_state_dict(dict(weights))
    torch.save(net, path.with_suffix(".pth"))


def as_safetensors(weights: Mapping[str, Tensor], path: Path) -> None:
    save_file(
        {name: value.contiguous() for name, value in weights.items()},
        path.with_suffix(".safetensors"),
    )


def as_npz(weights: Mapping[str, Tensor], path: Path) -> None:
    np.savez(path.with_suffix(".npz"), *(value.numpy() for value in weights.values()))


def save_all(folder: Path, save: Save, *, clients: bool = True, initial: bool = True) -> None:
    """Save the federation's models in the general layout."""
    for live_round in rounds():
        place = folder / f"round-{live_round.number}"
        place.mkdir(parents=True)
        if initial and live_round.number == 1:
            (folder / "round-0").mkdir()
            save(live_round.sent, folder / "round-0" / "global")
        save(live_round.after, place / "global")
        for client, weights in live_round.uploads.items() if clients else ():
            save(weights, place / f"client-{client}")


def record_live(folder: Path, **settings: object) -> None:
    """Record the same federation in the loop."""
    with recorder(folder, keep="signals", **settings) as live:
        for live_round in rounds():
            live.round(
                live_round.number,
                sent=live_round.sent,
                uploads=live_round.uploads,
                after=live_round.after,
            )


def recorded(folder: Path, out: Path, **settings: object) -> Path:
    settings = {"log": lambda line: None, **settings}
    return from_checkpoints(folder, network, data().split.audit, out=out, **settings)  # type: ignore[arg-type]


LAST = ROUNDS
