"""Helpers that are independent of networks."""
