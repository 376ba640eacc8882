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
