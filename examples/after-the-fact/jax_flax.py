"""A Flax network, averaged over clients and audited from a table of losses and gradients.

pip install jax flax optax
python examples/after-the-fact/jax_flax.py && fedaudit attack runs/jax
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd
from jax.flatten_util import ravel_pytree
from sklearn.datasets import load_digits

import fedaudit

CLIENTS, ROUNDS, EPOCHS, AUDITED = 4, 8, 10, 150
NETWORK = nn.Sequential([nn.Dense(64), nn.relu, nn.Dense(10)])
OPTIMIZER = optax.sgd(0.1, momentum=0.9)


def loss(model, x, y):
    return optax.softmax_cross_entropy_with_integer_labels(NETWORK.apply(model, x), y).mean()


@jax.jit
def step(model, state, x, y):
    updates, state = OPTIMIZER.update(jax.grad(loss)(model, x, y), state)
    return optax.apply_updates(model, updates), state


@jax.jit
def signals(received, trained, x, y):
    """Return the loss of each sample, and the cosine of its gradient and the client's update."""

    def gradient(x, y):
        return ravel_pytree(jax.grad(loss)(received, x, y))[0]

    losses = jax.vmap(loss, (None, 0, 0))(trained, x, y)
    gradients = jax.vmap(gradient)(x, y)
    change = ravel_pytree(received)[0] - ravel_pytree(trained)[0]
    norms = jnp.linalg.norm(gradients, axis=1) * jnp.linalg.norm(change)
    return {"loss": losses, "cosine": gradients @ change / jnp.maximum(norms, 1e-12)}


def main() -> None:
    rng = np.random.default_rng(1)
    x, y = load_digits(return_X_y=True)
    x = x.astype(np.float32) / 16
    client_of = rng.permutation(len(y)) % CLIENTS
    # A coin toss decides for each audited sample whether its client trains on it.
    audited = np.concatenate(
        [rng.permutation(np.flatnonzero(client_of == c))[:AUDITED] for c in range(CLIENTS)]
    )
    is_member = rng.random(len(audited)) < 0.5
    held_out = audited[~is_member]

    model = NETWORK.init(jax.random.key(1), x[:1])
    tables = []
    for round in range(1, ROUNDS + 1):
        models = []
        for client in range(CLIENTS):
            local, state = model, OPTIMIZER.init(model)
            rows = np.setdiff1d(np.flatnonzero(client_of == client), held_out)
            for _ in range(EPOCHS):
                for batch in np.split(
                    rng.permutation(rows)[: len(rows) // 32 * 32], len(rows) // 32
                ):
                    local, state = step(local, state, x[batch], y[batch])
            models.append(local)
            table = pd.DataFrame(signals(model, local, x[audited], y[audited]))
            tables.append(table.assign(round=round, client=client, sample=audited))
        model = jax.tree.map(lambda *parts: sum(parts) / CLIENTS, *models)

    table = pd.concat(tables)
    table["label"] = y[table["sample"]]
    table["drawn_for"] = client_of[table["sample"]]
    members = {c: audited[is_member & (client_of[audited] == c)] for c in range(CLIENTS)}
    fedaudit.from_signals(table, out="runs/jax", members=members, fair=True)


if __name__ == "__main__":
    main()
