"""Registries: mappings filled by a decorator that suggest the closest matches of an unknown name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Generic, TypeVar

from nttzoo.errors import UnknownName

T = TypeVar("T")


class Registry(Mapping[str, T], Generic[T]):
    """Maps names to values of one kind, such as "architecture".

    >>> ARCHITECTURES = Registry("architecture")
    >>> @ARCHITECTURES.register("mlp")
    ... class Mlp: ...
    >>> ARCHITECTURES["mpl"]
    UnknownName: no architecture 'mpl'. Did you mean 'mlp'? Known: mlp.
    """

    def __init__(self, kind: str):
        self.kind = kind
        self._entries: dict[str, T] = {}

    def register(self, name: str) -> Callable[[T], T]:
        """A decorator that enters the decorated object under `name`; a name can be taken once."""

        def enter(value: T) -> T:
            if name in self._entries:
                raise ValueError(f"{self.kind} {name!r} is registered already")
            self._entries[name] = value
            return value

        return enter

    def replace(self, name: str, value: T) -> None:
        """Enters a value under a name, in place of what was there."""
        self._entries[name] = value

    def __getitem__(self, name: str) -> T:
        try:
            return self._entries[name]
        except (KeyError, TypeError):
            raise UnknownName(self.kind, name, self._entries) from None

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)
