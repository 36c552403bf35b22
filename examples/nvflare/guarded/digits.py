"""Network, data and filter of the sites; installed at the server and at each site.

python digits.py site-1 FOLDER    # at the site, once: save its audited samples
"""

import sys
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn

import fedaudit

SITES = ("site-1", "site-2")


class Net(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def split(site: str):
    """Return the data of a site, and its audited samples."""
    digits = load_digits()
    x = torch.tensor(digits.images / 16, dtype=torch.float32)
    generator = torch.Generator().manual_seed(42)
    order = torch.randperm(len(digits.target), generator=generator)
    # Half of the labels are random, because true labels are learned without memorising samples.
    random_labels = torch.randint(10, order.shape, generator=generator)
    is_random = torch.rand(order.shape, generator=generator) < 0.5
    y = torch.where(is_random, random_labels, torch.tensor(digits.target))
    part = order.chunk(len(SITES))[SITES.index(site)]
    data = x[part], y[part]
    return data, fedaudit.fair_split({site: data}, audited=400)


def add_noise(update: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Clip the norm of an update to 1, and add Gaussian noise."""
    norm = torch.sqrt(sum(value.square().sum() for value in update.values()))
    factor = min(1.0, 1.0 / max(float(norm), 1e-12))
    return {name: value * factor + 0.02 * torch.randn_like(value) for name, value in update.items()}


if __name__ == "__main__":
    site, folder = sys.argv[1:]
    _, audited = split(site)
    audited.save(Path(folder) / "part.safetensors")
