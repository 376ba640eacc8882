INLINE vec sum_rows(const vec *grad, long row, int rows, int n) {
    vec a = ZERO;
    int y, x;
    for (y = 0; y < rows; y++, grad += row) for (x = 0; x < n; x++) a += grad[x];
    return a;
}

/* The products of a gradient's rows with inputs at one and at four places, summed; inputs are `step` apart. */
INLINE vec dot_rows(const vec *in, long in_row, long step, const vec *grad, long grad_row, int rows, int n) {
    vec a = ZERO, b = ZERO;
    int y, x;
    for (y = 0; y < rows; y++, in += in_row, grad += grad_row) {
        for (x = 0; x + 1 < n; x += 2) a += grad[x] * in[x * step], b += grad[x + 1] * in[(x + 1) * step];
        if (n & 1) a += grad[n - 1] * in[(n - 1) * step];
    }
    return a + b;
}

INLINE void dot_rows_4(const vec *in, const int32_t *place, long in_row, long step, const vec *grad, long grad_row,
                       int rows, int n, vec *RESTRICT sum) {
    const vec *p = in + place[0], *q = in + place[1], *r = in + place[2], *s = in + place[3];
    vec a = sum[0], b = sum[1], c = sum[2], d = sum[3];
    int y, x;
    for (y = 0; y < rows; y++, p += in_row, q += in_row, r += in_row, s += in_row, grad += grad_row) {
        for (x = 0; x < n; x++) {
            const vec g = grad[x];
            a += g * p[x * step], b += g * q[x * step], c += g * r[x * step], d += g * s[x * step];
        }
    }
    sum[0] = a, sum[1] = b, sum[2] = c, sum[3] = d;
}
