"""The gallery: the zoo as one web page that opens from disk. See the networks, draw a digit, watch one learn."""

from nttzoo.gallery.builder import Built, build

__all__ = ["Built", "build"]
