"""The study behind ``fedaudit demo``: small, on data that is always there."""

from fedaudit.study.config import Study
from fedaudit.study.values import study_from

DEMO: Study = study_from(
    {
        "name": "demo",
        "about": "Five clients train a small network on handwritten digits.",
        "data": {"name": "digits"},
        "partition": {"scheme": "iid", "clients": 5},
        "model": {"name": "mlp"},
        "training": {"rounds": 40, "epochs": 5, "batch_size": 10, "lr": 0.1},
        "audit": {"fair": 450, "background": 0},
        "figures": {"planted_leak": True},
    },
    source="the demo",
)
