/* What it would be worth to compute output planes in pairs, so that one load of an input row serves both.
 *
 *     grouping CHANNELS OUTPUTS SIDE DENSITY
 *
 * A convolution 3x3 with a random mask, once plane by plane as the generator does it, once in pairs that share as many
 * weights' places as a greedy search finds. Prints one line of JSON.
 */
#define _POSIX_C_SOURCE 199309L
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX__)
#define LANES 8
#else
#define LANES 4
#endif
#define ROUNDS 60
#define REPEATS 10
typedef float lanes __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

typedef struct {
    int count, *place;
    float *weight;
} List;

/* Adds the planes of a list to the four sums that start at `sum`. */
#define ADD(list, sum)                                                      \
    for (k = 0; k < (list).count; k++) {                                    \
        const float *from = in + (list).place[k] + i, w = (list).weight[k]; \
        for (v = 0; v < 4; v++) sum[v] += w * *(const lanes *)(from + v * LANES); \
    }

static void alone(const float *in, List all, float *restrict to, int n) {
    int i, k, v;
    for (i = 0; i < n; i += 4 * LANES) {
        lanes a[4] = {{0}};
        ADD(all, a)
        for (v = 0; v < 4; v++) *(lanes *)(to + i + v * LANES) = a[v];
    }
}

static void pair(const float *in, List both, const float *other, List a_only, List b_only, float *restrict to_a,
                 float *restrict to_b, int n) {
    int i, k, v;
    for (i = 0; i < n; i += 4 * LANES) {
        lanes a[4] = {{0}}, b[4] = {{0}};
        for (k = 0; k < both.count; k++) {
            const float *from = in + both.place[k] + i, w = both.weight[k], u = other[k];
            for (v = 0; v < 4; v++) {
                const lanes row = *(const lanes *)(from + v * LANES);
                a[v] += w * row;
                b[v] += u * row;
            }
        }
        ADD(a_only, a)
        ADD(b_only, b)
        for (v = 0; v < 4; v++) *(lanes *)(to_a + i + v * LANES) = a[v];
        for (v = 0; v < 4; v++) *(lanes *)(to_b + i + v * LANES) = b[v];
    }
}

static double microseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return 1e6 * (double)now.tv_sec + 1e-3 * (double)now.tv_nsec;
}

static List empty(int room) {
    List made = {0, malloc(sizeof(int) * (size_t)room), malloc(sizeof(float) * (size_t)room)};
    return made;
}

static void append(List *to, int place, float weight) {
    to->place[to->count] = place;
    to->weight[to->count++] = weight;
}

/* Splits two lists, each in rising order, into what they share and the rest; or only counts what they share. */
static int split(List a, List b, List *both, float *other, List *a_only, List *b_only) {
    int i = 0, j = 0, shared = 0;
    while (i < a.count || j < b.count) {
        const int p = i < a.count ? a.place[i] : 1 << 30, q = j < b.count ? b.place[j] : 1 << 30;
        shared += p == q;
        if (both && p == q) other[both->count] = b.weight[j], append(both, p, a.weight[i]);
        if (both && p < q) append(a_only, p, a.weight[i]);
        if (both && q < p) append(b_only, q, b.weight[j]);
        i += p <= q;
        j += q <= p;
    }
    return shared;
}

int main(int argc, char **argv) {
    if (argc != 5 || atoi(argv[2]) % 2) return 2; /* all planes have a partner */
    const int channels = atoi(argv[1]), outputs = atoi(argv[2]), side = atoi(argv[3]), row = side + 2;
    const double density = atof(argv[4]);
    const int n = (side - 1) * row + side, stride = n + 4 * LANES, room = 9 * channels;
    const size_t inputs = (size_t)(channels * row * row + 4 * LANES);
    float *in = malloc(4 * inputs), *out = malloc(4 * (size_t)(stride * outputs)), *check = malloc(4 * (size_t)stride);
    List *plane = malloc(sizeof(List) * (size_t)outputs), *part = malloc(3 * sizeof(List) * (size_t)outputs);
    float **other = malloc(sizeof(float *) * (size_t)outputs), worst = 0;
    int *first = malloc(sizeof(int) * (size_t)outputs);
    int *free_plane = calloc((size_t)outputs, sizeof(int)), o, p, k, r, weights = 0, shared = 0;
    size_t i;
    srand(0);
    for (i = 0; i < inputs; i++) in[i] = (float)rand() / (float)RAND_MAX - 0.5f;
    for (o = 0; o < outputs; o++) {
        plane[o] = empty(room);
        for (k = 0; k < room; k++) {
            if (rand() < density * RAND_MAX) append(&plane[o], k / 9 * row * row + k / 3 % 3 * row + k % 3, in[k] + 1);
        }
        weights += plane[o].count;
        free_plane[o] = 1;
    }
    for (o = 0, p = 0; o < outputs; o++) {
        int best = -1, most = -1, q;
        if (!free_plane[o]) continue;
        for (q = o + 1; q < outputs; q++) {
            const int common = free_plane[q] ? split(plane[o], plane[q], NULL, NULL, NULL, NULL) : -1;
            if (common > most) best = q, most = common;
        }
        free_plane[o] = free_plane[best] = 0;
        first[p] = o;
        for (k = 0; k < 3; k++) part[3 * p + k] = empty(room);
        other[p] = malloc(4 * (size_t)room);
        shared += split(plane[o], plane[best], &part[3 * p], other[p], &part[3 * p + 1], &part[3 * p + 2]);
        p++;
    }
    double best_alone = 1e9, best_pairs = 1e9;
    for (r = 0; r < ROUNDS; r++) {
        double began = microseconds(), middle, end;
        for (k = 0; k < REPEATS; k++) {
            for (o = 0; o < outputs; o++) alone(in, plane[o], out + o * stride, n);
        }
        middle = microseconds();
        for (k = 0; k < REPEATS; k++) {
            for (o = 0; o < p; o++) {
                float *to = out + 2 * o * stride;
                pair(in, part[3 * o], other[o], part[3 * o + 1], part[3 * o + 2], to, to + stride, n);
            }
        }
        end = microseconds();
        best_alone = (middle - began) / REPEATS < best_alone ? (middle - began) / REPEATS : best_alone;
        best_pairs = (end - middle) / REPEATS < best_pairs ? (end - middle) / REPEATS : best_pairs;
    }
    for (o = 0; o < p; o++) { /* what the pairs gave is what planes give alone */
        alone(in, plane[first[o]], check, n);
        for (k = 0; k < n; k++) {
            const float apart = check[k] - out[2 * o * stride + k];
            worst = apart > worst ? apart : -apart > worst ? -apart : worst;
        }
    }
    if (worst > 1e-3f) return 1;
    printf("{\"alone_microseconds\": %.2f, \"pairs_microseconds\": %.2f, \"loads_saved\": %.4f}\n",
           best_alone, best_pairs, (double)shared / weights);
    return 0;
}
