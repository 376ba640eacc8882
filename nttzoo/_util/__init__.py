"""Helpers that know nothing of networks."""
