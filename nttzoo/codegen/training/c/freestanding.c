#define NOT_A_NUMBER as_float(0x7fc00000)

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
    for (e = 0; e < count; e++) if ((int)labels[e] >= OUTPUTS) return NOT_A_NUMBER;
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
    if (!gather(state->gradient, 1, SIZE, 0, SIZE)) return NOT_A_NUMBER;
    state->powers[0] *= (double)rule.beta1, state->powers[1] *= (double)rule.beta2;
    update(&rule, state->theta, state->first, state->second, state->gradient, rate,
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
