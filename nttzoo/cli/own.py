"""Custom networks and data sets on the command line: `--model net.py:make`, `--data my.npz`.

Code is only imported from what the user typed, never from what a file names.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any


def entered(options: Any) -> Any:
    """Registers a custom `--model` and `--data`; returns the options with the registered names."""
    model, data = (getattr(options, key, None) for key in ("model", "data"))
    if isinstance(data, str):
        from nttzoo.data import own as own_data

        if own_data.is_own(data):
            options = replace(options, data=own_data.register(data))
    if isinstance(model, str) and ":" in model:
        from nttzoo.architectures import own as own_models
        from nttzoo.data import SOURCES

        options = replace(options, model=own_models.register(model))
        # Hosts join before JAX is first used, which a look at the network's outputs would be.
        if getattr(options, "data", None) is not None and not getattr(options, "distributed", False):
            source = SOURCES[options.data]
            own_models.check(options.model, num_classes=len(source.classes), input_shape=source.input_shape)
    return options
