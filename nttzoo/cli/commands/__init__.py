"""One dataclass per command of `nttzoo`: its fields are the options, `run` makes one call and prints the result.

Registries check names and suggest the closest matches. Importing them takes seconds, so that happens in `run`; `--help`
is instant.
"""

from typing import Any

from nttzoo.cli.commands.deployment import Device, Export, Speedup
from nttzoo.cli.commands.experiments import Compare, Reproduce, Visualize
from nttzoo.cli.commands.learning import Search, Train
from nttzoo.cli.commands.published import Gallery, Info, List, LoadCheck, Publish, Verify

COMMANDS: dict[str, type[Any]] = {
    "train": Train,
    "search": Search,
    "compare": Compare,
    "visualize": Visualize,
    "reproduce": Reproduce,
    "list": List,
    "info": Info,
    "verify": Verify,
    "load-check": LoadCheck,
    "export": Export,
    "device": Device,
    "publish": Publish,
    "gallery": Gallery,
    "speedup": Speedup,
}
