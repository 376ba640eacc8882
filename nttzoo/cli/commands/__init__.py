"""One function per command of `nttzoo`: each makes one call and prints the result."""

from nttzoo.cli.commands.deployment import device, export, speedup
from nttzoo.cli.commands.learning import compare, reproduce, search, train, visualize
from nttzoo.cli.commands.published import gallery, info, list_models, load_check, publish, verify

__all__ = [
    "compare",
    "device",
    "export",
    "gallery",
    "info",
    "list_models",
    "load_check",
    "publish",
    "reproduce",
    "search",
    "speedup",
    "train",
    "verify",
    "visualize",
]
