"""Benchmark of membership inference attacks on frozen recordings of leaking federations."""
