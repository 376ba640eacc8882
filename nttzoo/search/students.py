"""The students of one teacher on the devices: steps, mask updates, evaluation.

All students share each step's batch and the teacher's outputs and kernel on it; otherwise they are independent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax import lax
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, Integer, Num

from nttzoo.errors import ModelError, OptionError
from nttzoo.nn import LayerPath, Mask, is_masked, masked_layers, path_name, set_masks, sparsify, split_masked
from nttzoo.ntk.api import Tangents
from nttzoo.ntk.distance import spread_outputs
from nttzoo.ntk.factors import hides_masks
from nttzoo.ntk.inputs import check_inputs
from nttzoo.ntk.selfcheck import checked_shares
from nttzoo.ntk.sharding import Exchange
from nttzoo.search import teacher_table
from nttzoo.search.batches import draw_batch
from nttzoo.search.config import EVALUATION_IMAGES, Plan, SearchConfig, Target
from nttzoo.search.devices import AXIS
from nttzoo.search.mask_rules import MASK_RULES
from nttzoo.search.objective import Behavior, Terms, behavior, distances, ntt_loss
from nttzoo.search.state import LossSums, State, States, no_sums
from nttzoo.sparsity import allocation, masks, pruning
from nttzoo.sparsity.density import Density
from nttzoo.sparsity.schemes import Groups

Preprocess = Callable[[Num[Array, "n ..."]], Float[Array, "n ..."]]
LOGIT_SNIP_IMAGES = 128
# Up to this density, convolutions that skip pruned weights are faster than dense ones.
SPARSE_DENSITY = 0.2


class Students:
    """Makes the students' initial state and advances it. `images` [n, ...]: the search images."""

    def __init__(
        self,
        teacher: nnx.Module,
        images: np.ndarray,
        evaluation: np.ndarray,
        config: SearchConfig,
        plan: Plan,
        preprocess: Preprocess,
        mesh: Mesh | None,
    ):
        self.config, self.plan, self.recipe, self.mesh = config, plan, config.recipe, mesh
        self.preprocess = preprocess
        self.optimizer = optax.adam(self.recipe.learning_rate)
        self.devices = mesh.size if mesh else 1
        self.exchange = Exchange(AXIS, mesh.size) if mesh else None
        # Which layers of a masked model are dense is its owner's choice.
        masked = any(is_masked(layer) for _, layer in nnx.iter_modules(teacher))
        teacher = nnx.clone(teacher) if masked else sparsify(teacher)
        teacher.eval()
        self.teacher = teacher
        if any(not bool(layer.mask[...].all()) for layer in masked_layers(teacher).values()):
            raise ModelError("the teacher is sparse already; a search starts from a dense one.")
        self.graph, params, self.full_masks, self.others = split_masked(teacher)
        self.teacher_params = self._everywhere(params)
        example = preprocess(jnp.asarray(images[:2]))
        check_inputs(teacher, example, None)
        # The teacher's masks are full: both kinds of tangents are the same, and "all" is faster where it is defined.
        defined = self.recipe.tangents == "all" or not hides_masks(teacher, example[0])
        self.teacher_tangents: Tangents = "all" if defined else "active"
        kinds: set[Tangents] = {self.teacher_tangents, self.recipe.tangents}
        for tangents in kinds if self.recipe.active_from is None else {*kinds, "active"}:
            checked_shares(teacher, example, active=tangents == "active")
        self.layers = allocation.describe(teacher, jax.ShapeDtypeStruct((1, *example.shape[1:]), example.dtype))
        self.groups = [self._groups(target, target.density) for target in config.targets]
        self.densities = [
            allocation.overall_density(groups, target.density)
            for groups, target in zip(self.groups, config.targets, strict=True)
        ]
        # Densities may fall: what counts is the first one. On a mesh, products are dense.
        self.sparse = [mesh is None and self._first_density(target) <= SPARSE_DENSITY for target in config.targets]
        self.num_outputs = jax.eval_shape(lambda x: nnx.clone(teacher)(x), example).shape[1]
        if self.recipe.outputs is not None and self.recipe.outputs > self.num_outputs:
            raise OptionError(f"cannot sample {self.recipe.outputs} of {self.num_outputs} outputs.")

        self.images, self.scoring = self._everywhere(images), images[:LOGIT_SNIP_IMAGES]
        evaluation = evaluation[: min(len(evaluation), EVALUATION_IMAGES) // 2 * 2]
        self.evaluation = self._everywhere(preprocess(jnp.asarray(evaluation)))
        # Arrays go into compiled code as arguments: XLA would spend minutes on folding constants.
        self.teacher_seen = jax.jit(self._behavior)(self.teacher_params, self.full_masks, self.evaluation)
        self.key = self._everywhere(jax.random.key_data(jax.random.key(config.seed)))
        self.table = None
        if teacher_table.pays(len(images), self.num_outputs, plan, self.recipe.batch_size):
            made = teacher_table.make(teacher, preprocess(jnp.asarray(images)), self.teacher_tangents)
            self.table = self._everywhere(made)
        self._advance = self._compiled()
        self._refresh = [jax.jit(partial(self._new_mask, [g.paths for g in groups])) for groups in self.groups]
        self._evaluate = jax.jit(self._distances)

    def start(self, *, density_at: int = 0) -> States:
        """Before the first step: the teacher's weights, and masks by the recipe's method or by magnitude.

        Magnitudes of different layers are not comparable: where layers compete (`global`), masks are by Logit-SNIP.

        The masks have the density that the plan has for step `density_at`.
        """
        states = []
        for target, groups in zip(self.config.targets, self.groups, strict=True):
            student = nnx.clone(self.teacher)
            method = self.recipe.start_method or ("logit_snip" if _compete(groups) else "magnitude")
            pruning.prune(
                student,
                method,
                density=self.plan.density(target.density, density_at),
                scheme=target.scheme,
                exclude=self.config.exclude,
                batch=self.preprocess(jnp.asarray(self.scoring)),
                rngs=self.config.seed,
            )
            _, params, kept, _ = split_masked(student)
            optimizer, churn = self.optimizer.init(params), jnp.zeros((), jnp.int32)
            states.append(State(params, kept, optimizer, no_sums(), churn, self._first_ranks(student)))
        return self._everywhere(tuple(states))

    def _first_ranks(self, student: nnx.Module) -> dict[str, Array] | None:
        if not self.recipe.mask_momentum:
            return None
        found = MASK_RULES[self.recipe.mask_rule](student, self.evaluation.shape[1:], jnp.array(False))
        return {path_name(path): jnp.asarray(score) for path, score in found.items()}

    def advance(self, states: States, start: int, stop: int) -> States:
        """Steps start ... stop - 1. The bounds are traced: chunks of any length share one compilation."""
        return self._advance(states, *self._fixed(), np.int32(start), np.int32(stop))

    def lowered(self, states: States) -> Any:
        """The lowered program of `advance`, for inspection."""
        return self._advance.lower(states, *self._fixed(), np.int32(0), np.int32(1))

    def refresh(self, states: States, step: int) -> States:
        """Recomputes every student's mask from its magnitudes, at the density that the plan has for this step."""
        refreshed = []
        for state, target, take in zip(states, self.config.targets, self._refresh, strict=True):
            groups = self._groups(target, self.plan.density(target.density, step))
            counts = np.array([group.kept for group in groups], np.int32)
            settled = np.bool_(self.plan.density(target.density, step) == target.density)
            kept, churn, ranks = take(state.params, state.masks, state.ranks, counts, settled)
            refreshed.append(replace(state, masks=kept, churn=churn, ranks=ranks))
            if _compete(groups):
                masks.warn_of_empty_layers({path[:-1]: mask[...] for path, mask in nnx.to_flat_state(kept)})
        return tuple(refreshed)

    def evaluate(self, states: States) -> list[tuple[float, float]]:
        """Each student's (target, kernel) distances on the evaluation images, with all outputs."""
        found = (self._evaluate(s.params, s.masks, self.evaluation, self.teacher_seen) for s in states)
        return [(float(target), float(kernel)) for target, kernel in found]

    def reported(self, states: States) -> States:
        """The states with sums reset to zero."""
        return tuple(replace(state, sums=self._everywhere(no_sums())) for state in states)

    def model(self, state: State) -> Any:
        """A student as a model in evaluation mode, on the host's own device."""
        params, kept = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)), (state.params, state.masks))
        return self.merged(params, kept)

    def merged(self, params: Any, kept: Any) -> Any:
        """The model that has these parameters and masks."""
        return nnx.merge(self.graph, params, kept, self.others, copy=True)

    def _groups(self, target: Target, density: Density) -> Groups:
        return allocation.allocate(self.layers, density, target.scheme, self.config.exclude)

    def _first_density(self, target: Target) -> float:
        groups = self._groups(target, self.plan.density(target.density, 0))
        return sum(group.kept for group in groups) / sum(group.size for group in groups)

    # What runs on the devices.

    def _fixed(self) -> tuple[Any, ...]:
        return self.teacher_params, self.images, self.table, self.key

    def _everywhere(self, tree: Any) -> Any:
        """On every device of the mesh, whole."""
        if self.mesh is None:
            return jax.tree.map(jnp.asarray, tree)
        whole = jax.NamedSharding(self.mesh, PartitionSpec())
        # From the host: an array that already is on a device stays on that one where each process has one device only.
        return jax.tree.map(lambda leaf: jax.device_put(np.asarray(leaf), whole), tree)

    def _compiled(self) -> Any:
        if self.mesh is None:
            return jax.jit(self._run)
        whole = PartitionSpec()
        return jax.jit(jax.shard_map(self._run, mesh=self.mesh, in_specs=whole, out_specs=whole, check_vma=False))

    def _run(
        self,
        states: States,
        teacher_params: Any,
        images: Array,
        table: Behavior | None,
        key: Array,
        start: Array,
        stop: Array,
    ) -> States:
        def step(i: Array, states: States) -> States:
            batch_key, outputs_key = jax.random.split(jax.random.fold_in(jax.random.wrap_key_data(key), i))
            batch = draw_batch(batch_key, len(images), self.recipe.batch_size)
            mine = self._own_part(batch)
            outputs = None
            if self.recipe.outputs is not None:
                outputs = spread_outputs(outputs_key, len(batch), self.num_outputs, self.recipe.outputs)
            x = self.preprocess(images[mine])
            own = None if outputs is None else self._own_part(outputs)
            if table is None:
                teacher = self.merged(teacher_params, self.full_masks)
                seen = behavior(teacher, x, own, tangents=self.teacher_tangents, exchange=self.exchange)
            else:
                seen = teacher_table.look_up(table, mine, batch[len(batch) // 2 :], own, outputs)
            options = zip(states, self.densities, self.sparse, strict=True)
            return tuple(self._step(i, s, p, sparse, seen, x, own) for s, p, sparse in options)

        return lax.fori_loop(start, stop, step, states)

    def _own_part(self, batch: Integer[Array, "n ..."]) -> Integer[Array, "n//{self.devices} ..."]:
        """This device's part of both halves of the batch."""
        if self.exchange is None:
            return batch
        return self.exchange.own_part(batch.reshape(2, -1, *batch.shape[1:]), 1).reshape(-1, *batch.shape[1:])

    def _step(
        self, i: Array, state: State, density: float, sparse: bool, teacher: Behavior, x: Array, outputs: Array | None
    ) -> State:
        """One student's step of Adam, the i-th."""

        def loss(params: Any, tangents: Tangents) -> tuple[Array, Terms]:
            student = self.merged(params, state.masks)
            options: dict[str, Any] = {
                "density": density,
                "coefficients": self.recipe.coefficients,
                "tangents": tangents,
                "sparse": sparse,
            }
            return ntt_loss(student, teacher, x, outputs, exchange=self.exchange, **options)

        def gradient(tangents: Tangents) -> tuple[Any, Terms]:
            return jax.grad(loss, has_aux=True)(state.params, tangents)

        if self.recipe.active_from is None:
            grads, terms = gradient(self.recipe.tangents)
        else:
            late = i >= round(self.recipe.active_from * self.plan.steps)
            grads, terms = lax.cond(late, lambda: gradient("active"), lambda: gradient(self.recipe.tangents))
        if self.exchange:
            grads, terms = lax.pmean((grads, terms), self.exchange.axis)
        updates, optimizer = self.optimizer.update(grads, state.optimizer, state.params)
        params = optax.apply_updates(state.params, updates)
        seen = LossSums(**terms._asdict(), gradient=optax.tree.norm(grads))
        return replace(state, params=params, optimizer=optimizer, sums=jax.tree.map(jnp.add, state.sums, seen))

    def _new_mask(
        self, groups: list[list[LayerPath]], params: Any, kept: Any, ranks: Any, counts: Array, settled: Array
    ) -> tuple[Any, Array, Any]:
        """The mask by the recipe's rule, how many weights entered or left, and the scores if they are averaged."""
        model = self.merged(params, kept)
        layers = masked_layers(model)
        rank = MASK_RULES[self.recipe.mask_rule]
        found = rank(model, self.evaluation.shape[1:], settled)
        if ranks is not None:
            momentum = self.recipe.mask_momentum
            found = {path: momentum * ranks[path_name(path)] + (1 - momentum) * new for path, new in found.items()}
            ranks = {path_name(path): score for path, score in found.items()}
        made = masks.keep_in_groups(found, groups, list(counts))
        changed: Any = sum(jnp.sum(made[path] != layer.mask[...], dtype=jnp.int32) for path, layer in layers.items())
        set_masks(model, made)
        return nnx.state(model, Mask), changed, ranks

    def _behavior(self, params: Any, kept: Any, x: Array) -> Behavior:
        model = self.merged(params, kept)
        return behavior(model, x, tangents=self.recipe.tangents)

    def _distances(self, params: Any, kept: Any, x: Array, teacher: Behavior) -> tuple[Array, Array]:
        return distances(self._behavior(params, kept, x), teacher)


def _compete(groups: Groups) -> bool:
    """Whether some layer has no count of its own."""
    return any(len(group.layers) > 1 for group in groups)
