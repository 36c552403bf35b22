"""Trees of XGBoost that clients add in turn, audited from a table of their outputs.

pip install xgboost
python examples/after-the-fact/boosted_trees.py && fedaudit attack runs/boosted-trees
"""

import numpy as np
import pandas as pd
import xgboost
from sklearn.datasets import load_digits

import fedaudit

CLIENTS, ROUNDS, TREES, AUDITED = 4, 8, 3, 150
SETTINGS = {
    "objective": "multi:softprob",
    "num_class": 10,
    "max_depth": 4,
    "eta": 0.3,
    "nthread": 1,
}


def main() -> None:
    rng = np.random.default_rng(1)
    x, y = load_digits(return_X_y=True)
    client_of = rng.permutation(len(y)) % CLIENTS
    # A coin toss decides for each audited sample whether its client trains on it.
    audited = np.concatenate(
        [rng.permutation(np.flatnonzero(client_of == c))[:AUDITED] for c in range(CLIENTS)]
    )
    is_member = rng.random(len(audited)) < 0.5
    held_out = audited[~is_member]

    booster, tables = None, []
    for round in range(1, ROUNDS + 1):
        boosters = []
        for client in range(CLIENTS):
            rows = np.setdiff1d(np.flatnonzero(client_of == client), held_out)
            data = xgboost.DMatrix(x[rows], y[rows])
            # Every client adds trees to the model of the last round.
            boosters.append(xgboost.train(SETTINGS, data, TREES, xgb_model=booster))
            outputs = boosters[-1].predict(xgboost.DMatrix(x[audited]))
            table = pd.DataFrame(outputs).add_prefix("probability_")
            tables.append(table.assign(round=round, client=client, sample=audited))
        # The server takes the trees of one client in each round, in turn.
        booster = boosters[round % CLIENTS]

    table = pd.concat(tables)
    table["label"] = y[table["sample"]]
    table["drawn_for"] = client_of[table["sample"]]
    members = {c: audited[is_member & (client_of[audited] == c)] for c in range(CLIENTS)}
    fedaudit.from_signals(table, out="runs/boosted-trees", members=members, fair=True)


if __name__ == "__main__":
    main()
