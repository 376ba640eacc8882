/* One row of 2x2 maxima of two rows; the choice is 0 to 3, or 255 where a rectifier closes. */
INLINE void pool_rows(const vec *a, const vec *b, int n, vec *to, bvec *choice, int rectify) {
    int x;
    for (x = 0; x < n; x++) {
        vec top = a[2 * x];
        ivec at = {0}, above = a[2 * x + 1] > top;
        top = CHOOSE(above, a[2 * x + 1], top), at = ICHOOSE(above, ISPLAT(1), at);
        above = b[2 * x] > top;
        top = CHOOSE(above, b[2 * x], top), at = ICHOOSE(above, ISPLAT(2), at);
        above = b[2 * x + 1] > top;
        top = CHOOSE(above, b[2 * x + 1], top), at = ICHOOSE(above, ISPLAT(3), at);
        if (rectify) {
            const ivec open = top > 0.0f;
            top = KEEP(open, top), at = ICHOOSE(open, at, ISPLAT(255));
        }
        to[x] = top;
        choice[x] = BYTES(at);
    }
}

INLINE void unpool_rows(const vec *grad, const bvec *choice, int n, vec *a, vec *b) {
    int x;
    for (x = 0; x < n; x++) {
        const ivec at = WORDS(choice[x]);
        const vec g = grad[x];
        a[2 * x] = KEEP(at == 0, g), a[2 * x + 1] = KEEP(at == 1, g);
        b[2 * x] = KEEP(at == 2, g), b[2 * x + 1] = KEEP(at == 3, g);
    }
}
