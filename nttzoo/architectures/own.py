"""Custom architectures: a factory that the user names becomes an architecture.

The name is registered in this process only. Saved files record the factory and a hash of its source, so that an error
can name it; nothing that a file names is ever imported.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from nttzoo import nn
from nttzoo._util.references import Named, resolve
from nttzoo.architectures.registry import ARCHITECTURES, Shape, create
from nttzoo.errors import ModelError, NttzooError, OptionError, ShapeError


class Factory:
    """Makes networks like a registered class, from a function that takes `rngs` and returns an NNX module.

    If the function also takes `num_classes` or `input_shape`, they are passed from the data.
    """

    default_input_shape: Shape | None = None

    def __init__(self, named: Named):
        self.named = named
        self.default_input_shape = getattr(named.value, "default_input_shape", None)
        try:
            known = _arguments(named.value)
        except (TypeError, ValueError) as error:
            raise OptionError(f"the arguments of {named.reference} cannot be read: {error}.") from error
        every = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in known.values())
        self._given = [name for name in ("rngs", "num_classes", "input_shape") if name in known or every]
        if "rngs" not in self._given:
            raise OptionError(
                f"{named.reference} takes ({', '.join(known)}): a factory takes rngs, the random numbers of its "
                f"weights. For example: def {named.name}(rngs): return Net(rngs=rngs)."
            )
        needed = [
            name
            for name, p in known.items()
            if p.default is p.empty
            and p.kind not in (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
            and (name not in self._given or p.kind is inspect.Parameter.POSITIONAL_ONLY)
        ]
        if needed:
            raise OptionError(
                f"{named.reference} needs {', '.join(needed)}: a factory is given rngs, and num_classes and "
                "input_shape if it takes them. Give the others default values."
            )

    def __call__(self, *, num_classes: int, input_shape: Shape, rngs: nnx.Rngs) -> Any:
        model = self.make(num_classes=num_classes, input_shape=input_shape, rngs=rngs)
        if not any(nn.is_masked(layer) for _, layer in nnx.iter_modules(model)):
            nn.sparsify(model, copy=False)
        if not any(nn.is_masked(layer) for _, layer in nnx.iter_modules(model)):
            raise ModelError(f"{self.named.reference} has no Linear, LinearGeneral or Conv layer: nothing to prune.")
        for name, value in (("num_classes", num_classes), ("input_shape", input_shape)):
            if not hasattr(model, name):
                setattr(model, name, value)
        return model

    def make(self, **values: Any) -> Any:
        """The model as the function returns it, without masks if it has none."""
        try:
            model = self.named.value(**{name: values[name] for name in self._given})
        except NttzooError:
            raise
        except Exception as error:
            raise ModelError(f"{self.named.reference} raised {self.named.told(error)}.") from error
        if not isinstance(model, nnx.Module):
            found = f"the class {model.__name__}" if isinstance(model, type) else type(model).__name__
            raise ModelError(f"{self.named.reference} returned {found}; it must return an NNX module.")
        return model


def _arguments(factory: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The parameters of a function or class; NNX's metaclass hides those of a class, so `__init__` is inspected."""
    if not isinstance(factory, type):
        return dict(inspect.signature(factory).parameters)
    _, *known = inspect.signature(factory.__init__).parameters.items()  # type: ignore[misc]
    return dict(known)


def register(reference: str) -> str:
    """Registers the factory that `reference` names, such as "net.py:make", as an architecture; returns its name.

    This imports code: pass only references that the user typed.

    Args:
      reference: "package.module:factory", or "file.py:factory".

    Returns:
      The name, for `architectures.create`.

    Raises:
      OptionError: if there is no such factory, it takes no `rngs`, or a network of nttzoo has its name.

    Example:
      >>> name = architectures.own.register("net.py:make")
      >>> teacher = architectures.create(name, input_shape=(28, 28, 1), rngs=0)
    """
    named = resolve(reference, "--model")
    taken = ARCHITECTURES.get(named.name)
    if taken is not None and not isinstance(taken, Factory):
        raise OptionError(f"--model {reference}: {named.name!r} is a network of nttzoo. Give yours another name.")
    ARCHITECTURES.replace(named.name, Factory(named))
    return named.name


def check(name: str, *, num_classes: int, input_shape: Shape) -> None:
    """Raises unless the network takes batches of such inputs and gives one output per class; makes no weights."""
    if not isinstance(factory := ARCHITECTURES[name], Factory):
        return

    def outputs(images: Any) -> Any:
        model: Any = create(name, num_classes=num_classes, input_shape=input_shape, rngs=0)
        model.eval()
        return model(images)

    who = factory.named.reference
    images = jax.ShapeDtypeStruct((2, *input_shape), jnp.float32)
    try:
        found = jax.eval_shape(outputs, images)
    except NttzooError:
        raise
    except Exception as error:
        said = factory.named.told(error)
        hint = " Gray images of floats need a channel axis: images[..., None]." if len(input_shape) == 2 else ""
        raise ShapeError(f"{who} does not take inputs of shape {list(images.shape)}: {said}.{hint}") from error
    if getattr(found, "shape", None) != (2, num_classes):
        shape = list(getattr(found, "shape", ())) or type(found).__name__
        raise ShapeError(
            f"{who} gives {shape} for inputs of shape {list(images.shape)}; {num_classes} classes need "
            f"[2, {num_classes}], one output per class. A factory that takes num_classes receives it."
        )


def about(name: str) -> dict[str, Any]:
    """What a file records about an architecture's factory; nothing for a registered one."""
    factory = ARCHITECTURES.get(name)
    if not isinstance(factory, Factory):
        return {}
    return {"factory": {"reference": factory.named.reference, "sha256": factory.named.sha256}}


def check_saved(content: Mapping[str, Any], who: str) -> None:
    """Raises if a saved network needs a factory that was not given; warns if the factory's source has changed."""
    name, told = content["architecture"], content.get("factory")
    factory = ARCHITECTURES.get(name)
    if told is None:
        return
    if not isinstance(factory, Factory):
        raise ModelError(
            f"{who} holds a custom network, made by {told['reference']!r}. Name its factory: "
            f"--model {told['reference']} on the command line, factory=... in Python. A file's code is never imported."
        )
    if factory.named.sha256 != told["sha256"]:
        warnings.warn(
            f"the source of {factory.named.reference} has changed since {who} was written: the network may compute "
            "something else now.",
            stacklevel=2,
        )
