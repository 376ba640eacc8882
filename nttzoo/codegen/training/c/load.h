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
