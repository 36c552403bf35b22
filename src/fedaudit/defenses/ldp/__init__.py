"""Local differential privacy of records: a client perturbs its features once, before it trains.

What a mechanism claims and what it gives are two things here: each works out its actual epsilon
from the probabilities that it really draws with.
"""
