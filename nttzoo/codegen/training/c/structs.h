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
