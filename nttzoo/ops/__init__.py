"""Fast array primitives."""
