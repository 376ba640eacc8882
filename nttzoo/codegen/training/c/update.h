enum { SGD = 0, ADAM = 1 };

struct rule {
    int32_t kind, nesterov;
    float momentum, beta1, beta2, rest1, rest2, epsilon, decay; /* rest: 1 - beta, rounded once, as optax does */
};

/* Adds the slots of gradients begin ... end - 1 to the first one, in order; returns whether all are finite. */
static int gather(float *gradient, int64_t slots, int64_t size, int64_t begin, int64_t end) {
    float zero = 0.0f; /* x - x is zero for finite x only */
    int64_t i, s;
    for (s = 1; s < slots; s++) for (i = begin; i < end; i++) gradient[i] += gradient[s * size + i];
    for (i = begin; i < end; i++) zero += gradient[i] - gradient[i];
    return zero == 0.0f;
}

/* Moves parameters begin ... end - 1. */
static void update(const struct rule *rule, float *theta, float *first, float *second, const float *gradient,
                   float rate, float correct1, float correct2, int64_t begin, int64_t end) {
    int64_t i;
    if (rule->kind == ADAM) {
        for (i = begin; i < end; i++) {
            const float g = gradient[i];
            float m, v;
            m = rule->beta1 * first[i] + rule->rest1 * g;
            v = rule->beta2 * second[i] + rule->rest2 * (g * g);
            first[i] = m, second[i] = v;
            theta[i] -= rate * ((m / correct1) / (SQRT(v / correct2) + rule->epsilon) + rule->decay * theta[i]);
        }
    } else {
        for (i = begin; i < end; i++) {
            float g = gradient[i] + rule->decay * theta[i];
            if (rule->momentum != 0.0f) {
                first[i] = g + rule->momentum * first[i];
                g = rule->nesterov ? g + rule->momentum * first[i] : first[i];
            }
            theta[i] -= rate * g;
        }
    }
}
