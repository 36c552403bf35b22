"""Plain names of what an adversary sees or can do, for messages and reports.

The keys are the lower-case names of :class:`fedaudit.core.values.Capability`. This module does not
import torch.
"""

from collections.abc import Mapping
from types import MappingProxyType

SIGHTS: Mapping[str, str] = MappingProxyType(
    {
        "predictions": "model outputs",
        "global_model": "the global model",
        "next_model": "the next global model",
        "update": "the change of the model in training",
        "uploads": "each client's upload",
        "rounds": "several rounds",
        "auxiliary_data": "the adversary's own data",
        "chooses_model": "control over the model that clients receive",
        "chooses_upload": "control over one client's upload",
        "reference_models": "reference models",
        "control_variates": "the clients' control variates",
    }
)
