"""The C around the nodes: loading a block, the loss, the update, and threads that share the blocks of a batch.

Each block adds its gradient to one of `slots` sums, and these are added in order: whatever the number of threads, the
same floats are added in the same order.
"""

from __future__ import annotations

STRUCTS = """\
struct net {
    const int32_t *const *lists; /* per layer: rows and places, forward and transposed */
    const float *theta, *back;
    const int64_t *starts, *back_starts, *norm_starts;
};

struct block {
    float *gradient;
    vec *partial;
    uvec lanes;
    uint32_t key;
    int train;
};
"""

LOAD = """\
static void load(vec *m, const void *images, const float *levels, const int64_t *chosen, int n) {
    const uint8_t *bytes[BLOCK];
    const float *floats[BLOCK];
    int e, i, c;
    for (e = 0; e < BLOCK; e++) {
        const int64_t image = chosen[e < n ? e : 0];
        bytes[e] = (const uint8_t *)images + image * INPUTS;
        floats[e] = (const float *)images + image * INPUTS;
    }
    if (levels) {
        for (i = 0; i < INPUTS; i += CHANNELS) {
            for (c = 0; c < CHANNELS; c++) {
                float *to = (float *)(m + input_place[i + c]);
                for (e = 0; e < BLOCK; e++) to[e] = levels[c * 256 + bytes[e][i + c]];
            }
        }
    } else {
        for (i = 0; i < INPUTS; i++) {
            float *to = (float *)(m + input_place[i]);
            for (e = 0; e < BLOCK; e++) to[e] = floats[e][i];
        }
    }
}
"""

LOSS = """\
enum { CROSS_ENTROPY = 0, SQUARED = 1 };

/* Loss and hits of a block; the gradient of the mean loss goes to the logits' gradients. Lanes beyond n are ignored. */
static void loss(vec *m, const int32_t *labels, int n, int kind, float scale, int backward, double *sum,
                 int64_t *hits) {
    ivec label, best = ISPLAT(0), valid;
    vec top = m[output_place[0]], value = ZERO, all = ZERO;
    int k, e;
#if BLOCK > 1
    for (e = 0; e < BLOCK; e++) label[e] = e < n ? labels[e] : -1;
#else
    label = labels[0];
#endif
    valid = label >= 0;
    for (k = 1; k < OUTPUTS; k++) {
        const vec z = m[output_place[k]];
        const ivec above = z > top;
        top = CHOOSE(above, z, top), best = ICHOOSE(above, ISPLAT(k), best);
    }
    for (k = 0; k < OUTPUTS; k++) {
        const vec z = m[output_place[k]];
        const ivec own = label == k;
        if (kind == CROSS_ENTROPY) {
            all += exponential(z - top);
            value -= KEEP(own, z - top);
        } else {
            const vec d = z - KEEP(own, splat(1.0f));
            value += 0.5f * d * d;
            if (backward) m[output_gradient[k]] = KEEP(valid, d * scale);
        }
    }
    if (kind == CROSS_ENTROPY) {
        value += logarithm(all);
        /* Not finite logits: the way through the integers would hide them. */
        value += (all - all) + (top - top);
        if (backward) {
            const vec share = scale / all;
            for (k = 0; k < OUTPUTS; k++) {
                const vec p = exponential(m[output_place[k]] - top) * share;
                m[output_gradient[k]] = KEEP(valid, p - KEEP(label == k, splat(scale)));
            }
        }
    }
    for (e = 0; e < n; e++) {
        *sum += (double)LANE(value, e);
        *hits += LANE(best, e) == LANE(label, e);
    }
}
"""

UPDATE = """\
enum { SGD = 0, ADAM = 1 };

struct rule {
    int32_t kind, nesterov;
    float momentum, beta1, beta2, rest1, rest2, epsilon, decay; /* rest: 1 - beta, rounded once, as optax does */
};

/* Moves parameters begin ... end - 1; the gradient is the sum of the slots. */
static void update(const struct rule *rule, float *theta, float *first, float *second, const float *gradient,
                   int slots, int64_t size, float rate, float correct1, float correct2, int64_t begin, int64_t end) {
    int64_t i;
    int s;
    if (rule->kind == ADAM) {
        for (i = begin; i < end; i++) {
            float g = gradient[i], m, v;
            for (s = 1; s < slots; s++) g += gradient[s * size + i];
            m = rule->beta1 * first[i] + rule->rest1 * g;
            v = rule->beta2 * second[i] + rule->rest2 * (g * g);
            first[i] = m, second[i] = v;
            theta[i] -= rate * ((m / correct1) / (SQRT(v / correct2) + rule->epsilon) + rule->decay * theta[i]);
        }
    } else {
        for (i = begin; i < end; i++) {
            float g = gradient[i];
            for (s = 1; s < slots; s++) g += gradient[s * size + i];
            g += rule->decay * theta[i];
            if (rule->momentum != 0.0f) {
                first[i] = g + rule->momentum * first[i];
                g = rule->nesterov ? g + rule->momentum * first[i] : first[i];
            }
            theta[i] -= rate * g;
        }
    }
}
"""

MIX = """\
static uint32_t mix(uint64_t x) {
    x = (x ^ (x >> 31)) * 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9u;
    return (uint32_t)(x >> 32);
}
"""

HOST = """\
#include <pthread.h>
#include <sched.h>
#include <string.h>

enum { EVALUATE = 0, GRADIENT = 1, TRAIN = 2 };

/* As nttzoo.codegen.training.library has it. */
struct job {
    struct net net;
    float *theta, *back;
    const int64_t *back_from;
    int64_t size, back_size, partial_size;
    const void *images;
    const float *levels;
    const int32_t *labels;
    const int64_t *order;
    int64_t batch, steps, slots, threads, mode, loss;
    struct rule rule;
    const float *rates;
    double *powers; /* beta1 and beta2 to the number of steps */
    float *first, *second, *gradient;
    vec *arenas, *partials;
    uint64_t key;
    double *losses;
    int64_t *hits;
    float *logits;
};

struct team {
    struct job *job;
    double *loss;
    int64_t *hits;
    int64_t next, waiting, turn, done, bad;
};

static void wait_for_all(struct team *team) {
    const int64_t threads = team->job->threads;
    const int64_t turn = __atomic_load_n(&team->turn, __ATOMIC_ACQUIRE);
    int64_t spins = 0;
    if (threads == 1) return;
    if (__atomic_add_fetch(&team->waiting, 1, __ATOMIC_ACQ_REL) == threads) {
        __atomic_store_n(&team->waiting, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&team->turn, turn + 1, __ATOMIC_RELEASE);
        return;
    }
    while (__atomic_load_n(&team->turn, __ATOMIC_ACQUIRE) == turn) {
        if (++spins > 2000) sched_yield();
    }
}

static void run_slot(struct team *team, int64_t step, int64_t slot, int64_t thread) {
    const struct job *job = team->job;
    const int64_t blocks = (job->batch + BLOCK - 1) / BLOCK;
    const int64_t *chosen = job->order + step * job->batch;
    vec *m = job->arenas + thread * ARENA;
    const float scale = (float)(1.0 / (double)job->batch);
    struct block at;
    int64_t b;
    int e, k;
    at.gradient = job->gradient + slot * job->size;
    at.partial = job->partials + thread * job->partial_size;
    at.train = job->mode == TRAIN;
#if BLOCK > 1
    for (e = 0; e < BLOCK; e++) at.lanes[e] = (uint32_t)e * 0x7feb352du;
#else
    at.lanes = 0;
#endif
    if (job->mode != EVALUATE) memset(at.gradient, 0, (size_t)job->size * sizeof(float));
    for (b = slot; b < blocks; b += job->slots) {
        const int n = job->batch - b * BLOCK < BLOCK ? (int)(job->batch - b * BLOCK) : BLOCK;
        int32_t labels[BLOCK];
        for (e = 0; e < n; e++) labels[e] = job->labels ? job->labels[chosen[b * BLOCK + e]] : 0;
        at.key = mix(job->key + (uint64_t)step * 0x100000001b3u + (uint64_t)b * 0x9e3779b1u);
        load(m, job->images, job->levels, chosen + b * BLOCK, n);
        forward(m, &job->net, &at);
        if (job->logits) {
            for (e = 0; e < n; e++) {
                for (k = 0; k < OUTPUTS; k++) {
                    job->logits[(b * BLOCK + e) * OUTPUTS + k] = LANE(m[output_place[k]], e);
                }
            }
        }
        if (job->labels) {
            loss(m, labels, n, (int)job->loss, scale, job->mode != EVALUATE, team->loss + slot, team->hits + slot);
        }
        if (job->mode != EVALUATE) backward(m, &job->net, &at);
    }
}

static void work(struct team *team, int64_t thread) {
    struct job *job = team->job;
    const int64_t threads = job->threads;
    const int64_t begin = job->size * thread / threads, end = job->size * (thread + 1) / threads;
    const int64_t back = job->back_size * thread / threads, back_end = job->back_size * (thread + 1) / threads;
    int64_t step, slot, i;
    for (step = 0; step < job->steps; step++) {
        if (thread == 0) {
            for (slot = 0; slot < job->slots; slot++) team->loss[slot] = 0.0, team->hits[slot] = 0;
            __atomic_store_n(&team->next, 0, __ATOMIC_RELAXED);
        }
        if (job->mode != EVALUATE) for (i = back; i < back_end; i++) job->back[i] = job->theta[job->back_from[i]];
        wait_for_all(team);
        while ((slot = __atomic_fetch_add(&team->next, 1, __ATOMIC_RELAXED)) < job->slots) {
            run_slot(team, step, slot, thread);
        }
        wait_for_all(team);
        if (thread == 0) {
            double sum = 0.0;
            int64_t hits = 0;
            for (slot = 0; slot < job->slots; slot++) sum += team->loss[slot], hits += team->hits[slot];
            job->losses[step] = sum / (double)job->batch;
            job->hits[step] = hits;
            team->bad = job->labels && !(sum - sum == 0.0);
            if (job->mode == TRAIN && !team->bad) {
                job->powers[0] *= (double)job->rule.beta1, job->powers[1] *= (double)job->rule.beta2;
            }
        }
        wait_for_all(team);
        if (team->bad) break;
        if (job->mode == TRAIN) {
            update(&job->rule, job->theta, job->first, job->second, job->gradient, (int)job->slots, job->size,
                   job->rates[step], (float)(1.0 - job->powers[0]), (float)(1.0 - job->powers[1]), begin, end);
        }
        wait_for_all(team);
        if (thread == 0) team->done = step + 1;
    }
}

struct member {
    struct team *team;
    int64_t thread;
};

static void *start(void *given) {
    struct member *member = given;
    work(member->team, member->thread);
    return 0;
}

/* Runs the steps of a job; returns how many were done: fewer if a loss was not finite. */
int64_t @NAME@_run(struct job *job) {
    enum { MOST = 64 };
    pthread_t threads[MOST];
    struct member members[MOST];
    double losses[MOST];
    int64_t hits[MOST], i, started;
    struct team team;
    memset(&team, 0, sizeof team);
    team.job = job, team.loss = losses, team.hits = hits;
    if (job->threads > MOST) job->threads = MOST;
    if (job->slots > MOST) return -1;
    for (i = 1; i < job->threads; i++) {
        members[i].team = &team, members[i].thread = i;
        if (pthread_create(threads + i, 0, start, members + i)) return -1;
    }
    work(&team, 0);
    started = job->threads;
    for (i = 1; i < started; i++) pthread_join(threads[i], 0);
    return team.done;
}
"""

# One example at a time, on memory that the caller provides.
FREESTANDING = """\
static struct net @NAME@_net(struct @NAME@_state *state) {
    const struct net net = {lists, state->theta, state->back, starts, back_starts, norm_starts};
    return net;
}

void @NAME@_init(struct @NAME@_state *state) {
    int64_t i;
    for (i = 0; i < SIZE; i++) {
        state->theta[i] = initial[i];
        state->first[i] = state->second[i] = state->gradient[i] = 0.0f;
    }
    state->powers[0] = state->powers[1] = 1.0;
    state->steps = 0;
}

static void clear(float *arena) {
    /* Borders must be zeros; the arena may hold anything. */
    int64_t i;
    for (i = 0; i < ARENA; i++) arena[i] = 0.0f;
}

float @NAME@_train(struct @NAME@_state *state, float *arena, const float *images, const uint8_t *labels, int count,
                   float rate) {
    const struct rule rule = {@RULE@};
    const struct net net = @NAME@_net(state);
    const int64_t first = 0;
    struct block at;
    double sum = 0.0;
    int64_t i, hits = 0;
    int e;
    if (count < 1) return 0.0f;
    clear(arena);
    for (i = 0; i < BACK; i++) state->back[i] = state->theta[back_from[i]];
    for (i = 0; i < SIZE; i++) state->gradient[i] = 0.0f;
    at.gradient = state->gradient, at.partial = arena + ARENA, at.lanes = 0, at.train = 1;
    for (e = 0; e < count; e++) {
        const int32_t label = labels[e];
        at.key = mix(@SEED@u + (uint64_t)state->steps * 0x100000001b3u + (uint64_t)e * 0x9e3779b1u);
        load(arena, images + (int64_t)e * INPUTS, 0, &first, 1);
        forward(arena, &net, &at);
        loss(arena, &label, 1, @LOSS@, 1.0f / (float)count, 1, &sum, &hits);
        backward(arena, &net, &at);
    }
    sum /= count;
    if (!(sum - sum == 0.0)) return (float)sum;
    state->powers[0] *= (double)rule.beta1, state->powers[1] *= (double)rule.beta2;
    update(&rule, state->theta, state->first, state->second, state->gradient, 1, SIZE, rate,
           (float)(1.0 - state->powers[0]), (float)(1.0 - state->powers[1]), 0, SIZE);
    state->steps++;
    return (float)sum;
}

void @NAME@_run(struct @NAME@_state *state, float *arena, const float *image, float *logits) {
    const struct net net = @NAME@_net(state);
    const int64_t first = 0;
    struct block at = {0};
    int k;
    clear(arena);
    load(arena, image, 0, &first, 1);
    forward(arena, &net, &at);
    for (k = 0; k < OUTPUTS; k++) logits[k] = arena[output_place[k]];
}
"""

HEADER = """\
/* {name}: a sparse network that learns, as plain C, made by nttzoo.
 *
 *     static struct {name}_state state;
 *     static float arena[{upper}_ARENA];
 *     {name}_init(&state);
 *     loss = {name}_train(&state, arena, images, labels, count, {rate});
 *     {name}_run(&state, arena, image, logits);
 *
 * One example is {inputs} floats; labels are 0 to {last}. No heap, one thread, batches of any size from 1; of the
 * C library only sqrtf, where the machine has no instruction for it.
 * A loss that is not finite leaves the weights as they were.
 */
#ifndef {upper}_H
#define {upper}_H

#include <stdint.h>

#define {upper}_INPUTS {inputs}
#define {upper}_OUTPUTS {outputs}
#define {upper}_ARENA {arena}
#define {upper}_WEIGHTS {size}

struct {name}_state {{
    float theta[{size}], back[{back}], first[{size}], second[{size}], gradient[{size}];
    double powers[2];
    uint32_t steps;
}};

#ifdef __cplusplus
extern "C" {{
#endif

/* The network's initial weights; {optimizer} starts anew. */
void {name}_init(struct {name}_state *state);
/* One step on `count` examples with a learning rate; returns the mean loss before it. */
float {name}_train(struct {name}_state *state, float *arena, const float *images, const uint8_t *labels, int count,
                   float rate);
void {name}_run(struct {name}_state *state, float *arena, const float *image, float *logits);

#ifdef __cplusplus
}}
#endif

#endif
"""
