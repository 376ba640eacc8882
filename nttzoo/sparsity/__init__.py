"""Masks, pruning and what they save."""
