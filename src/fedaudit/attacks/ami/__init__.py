"""Active membership inference: a neuron that fires for one record, and the games played with it."""
