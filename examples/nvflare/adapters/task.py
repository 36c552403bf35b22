"""A network of which adapters (LoRA) and the head are trained, and the data of each site."""

from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from sklearn.datasets import load_digits
from torch import nn

import fedaudit

SITES = 3


class Digits(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.head = nn.Linear(64, 32), nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.hidden(x).relu())


class Net(nn.Module):
    """Network with adapters; its state dict has adapters and head only, which NVFlare exchanges."""

    def __init__(self) -> None:
        super().__init__()
        adapters = LoraConfig(r=4, target_modules=["hidden"], modules_to_save=["head"])
        # The same frozen weights in every process; a real project loads a pretrained model here.
        torch.manual_seed(0)
        self.model = get_peft_model(Digits(), adapters)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x)

    def state_dict(self, **_) -> dict[str, torch.Tensor]:
        return get_peft_model_state_dict(self.model)

    def load_state_dict(self, state: dict[str, torch.Tensor], **_) -> None:
        set_peft_model_state_dict(self.model, state)


def partitions() -> dict[int, tuple[torch.Tensor, torch.Tensor]]:
    """Return the data of each site by the number in its name, the same in every process."""
    digits = load_digits()
    x, y = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
    order = torch.randperm(600, generator=torch.Generator().manual_seed(42))
    return {site: (x[part], y[part]) for site, part in enumerate(order.chunk(SITES), start=1)}


def audit_split(number: int):
    return fedaudit.fair_split({number: partitions()[number]}, audited=80)


def record(folder):
    parts = Path(f"{folder}-parts").glob("site-*")
    return fedaudit.record(folder, Net, fedaudit.join_audits(parts))


def load_data(site: str) -> tuple[torch.Tensor, torch.Tensor]:
    number = int(site.rpartition("-")[2])
    x, y = partitions()[number]
    kept = audit_split(number).train[number]
    return x[kept], y[kept]
