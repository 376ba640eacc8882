/* What the machine can do: multiply-adds on registers, and reading memory once. */
typedef float vec __attribute__((vector_size(4 * LANES)));
enum { SUMS = 12 };

/* Does rounds * SUMS * LANES multiply-adds. */
float multiply_adds(long rounds) {
    vec sum[SUMS] = {{0}}, one = {0}, other = {0};
    float total = 0.0f;
    long k;
    int i;
    for (k = 0; k < rounds; k++) {
        __asm__ volatile("" : "+x"(one), "+x"(other));
        for (i = 0; i < SUMS; i++) sum[i] += one * other;
    }
    for (i = 0; i < SUMS; i++) total += sum[i][0];
    return total;
}

float read_memory(const float *from, long count) {
    vec sum[4] = {{0}};
    long k;
    int i;
    for (k = 0; k + 4 * LANES <= count; k += 4 * LANES) {
        for (i = 0; i < 4; i++) sum[i] += *(const vec *)(from + k + i * LANES);
    }
    return sum[0][0] + sum[1][0] + sum[2][0] + sum[3][0];
}
