"""Sharding of one kernel over the devices of a mesh.

Each device runs the network on its own examples. A kernel needs every pair of examples. Jacobians are large, so devices
exchange their factors: each device receives the layer inputs of all examples, and the cotangents of all examples at its
own part of a layer's output channels. From these it computes its own columns of the Jacobian and their Gram matrix. The
sum over devices is the kernel, of which each device keeps its own rows.

All functions here run inside `jax.shard_map`. A device's examples are two halves, x1 and x2, one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Shaped


@dataclass(frozen=True)
class Exchange:
    """Between the `devices` along the mesh axis `axis`."""

    axis: str
    devices: int

    def all_examples(self, x: Shaped[Array, "n ..."]) -> Shaped[Array, "{self.devices}*n ..."]:
        """The examples of all devices: first all x1, then all x2."""
        halves = x.reshape(2, -1, *x.shape[1:])
        return lax.all_gather(halves, self.axis, axis=1, tiled=True).reshape(-1, *x.shape[1:])

    def own_columns(self, x: Shaped[Array, "n ..."], axis: int) -> Shaped[Array, "{self.devices}*n ..."]:
        """The examples of all devices, but only this device's part of one axis (padded with zeros to equal parts)."""
        x = self._filled(x, axis)
        halves = x.reshape(2, -1, *x.shape[1:])
        parts = lax.all_to_all(halves, self.axis, split_axis=axis + 1, concat_axis=1, tiled=True)
        return parts.reshape(-1, *parts.shape[2:])

    def own_part(self, x: Shaped[Array, "..."], axis: int) -> Shaped[Array, "..."]:
        """This device's part of one axis of an array that all devices have."""
        x = self._filled(x, axis)
        size = x.shape[axis] // self.devices
        return lax.dynamic_slice_in_dim(x, lax.axis_index(self.axis) * size, size, axis)

    def own_rows_of_sum(self, kernel: Shaped[Array, "n1 ..."]) -> Shaped[Array, "n1//{self.devices} ..."]:
        """This device's rows of the sum of all devices' kernels."""
        return lax.psum_scatter(kernel, self.axis, scatter_dimension=0, tiled=True)

    def _filled(self, x: Array, axis: int) -> Array:
        missing = -x.shape[axis] % self.devices
        return jnp.pad(x, [(0, missing if i == axis else 0) for i in range(x.ndim)]) if missing else x
