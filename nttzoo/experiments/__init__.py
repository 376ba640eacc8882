"""Comparisons, trajectories and what is published of them."""
