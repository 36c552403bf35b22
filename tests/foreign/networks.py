"""Networks as people write them, with the samples that they take."""

import torch.nn.functional as F
from torch import Tensor, nn

CLASSES = 4


class Tutorial(nn.Module):
    """Convolutions, pooling, and a view of what comes out, as the first tutorial has them."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 5)
        self.pool = nn.MaxPool2d(2, 2)
        self.conv2 = nn.Conv2d(6, 8, 3)
        self.fc1 = nn.Linear(8 * 3 * 3, 20)
        self.fc2 = nn.Linear(20, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        x = x.view(-1, 8 * 3 * 3)
        x = F.relu(self.fc1(x))
        out: Tensor = self.fc2(x)
        return out
