"""Empirical neural tangent kernels of any NNX model, exact and differentiable.

K(x, x')[r, s] is the inner product of the gradients of output r at x and of output s at x' with respect to all
parameters. It is assembled parameter by parameter from the products that use it (`dataflow`), without forming the
Jacobian of the whole model.
"""

from nttzoo.ntk.api import empirical_ntk
from nttzoo.ntk.distance import kernel_distance, output_weights, spread_outputs

__all__ = ["empirical_ntk", "kernel_distance", "output_weights", "spread_outputs"]
