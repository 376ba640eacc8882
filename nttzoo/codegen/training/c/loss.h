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
