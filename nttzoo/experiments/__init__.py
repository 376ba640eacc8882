"""Comparisons, trajectories and publishing."""
