#if defined(__GNUC__)
#define INLINE static inline __attribute__((always_inline))
#define NOINLINE static __attribute__((noinline))
#define SQRT(x) __builtin_sqrtf(x)
#else
#include <math.h>
#define INLINE static inline
#define NOINLINE static
#define SQRT(x) sqrtf(x)
#endif

#if BLOCK > 1
typedef float vec __attribute__((vector_size(4 * BLOCK)));
typedef int32_t ivec __attribute__((vector_size(4 * BLOCK)));
typedef uint32_t uvec __attribute__((vector_size(4 * BLOCK)));
typedef uint8_t bvec __attribute__((vector_size(BLOCK), aligned(1)));
#define LANE(v, i) ((v)[i])
#define KEEP(mask, v) ((vec)((ivec)(v) & (mask)))
#define CHOOSE(mask, a, b) ((vec)(((ivec)(a) & (mask)) | ((ivec)(b) & ~(mask))))
#define ICHOOSE(mask, a, b) (((a) & (mask)) | ((b) & ~(mask)))
#define BYTES(v) __builtin_convertvector(v, bvec)
#define WORDS(v) __builtin_convertvector(v, ivec)
#define FLOATS(v) __builtin_convertvector(v, vec)
#define AS_INT(v) ((ivec)(v))
#define AS_FLOAT(v) ((vec)(v))
#define ISPLAT(x) ((ivec){0} + (x))
#define NOT(mask) (~(mask))
#else
typedef float vec;
typedef int32_t ivec;
typedef uint32_t uvec;
typedef uint8_t bvec;
#define LANE(v, i) (v)
#define KEEP(mask, v) ((mask) ? (v) : 0.0f)
#define CHOOSE(mask, a, b) ((mask) ? (a) : (b))
#define ICHOOSE(mask, a, b) ((mask) ? (a) : (b))
#define BYTES(v) ((bvec)(v))
#define WORDS(v) ((ivec)(v))
#define FLOATS(v) ((float)(v))
static inline int32_t as_int(float x) { union { float f; int32_t i; } u; u.f = x; return u.i; }
static inline float as_float(int32_t x) { union { float f; int32_t i; } u; u.i = x; return u.f; }
#define AS_INT(v) as_int(v)
#define AS_FLOAT(v) as_float(v)
#define ISPLAT(x) ((ivec)(x))
#define NOT(mask) (!(mask))
#endif

static const vec ZERO = {0};

INLINE vec splat(float x) { vec v = {0}; v += x; return v; }

/* The sum over the examples of a block, always in the same order. */
INLINE float total(vec v) {
#if BLOCK == 16
    typedef float half __attribute__((vector_size(32)));
    typedef float quarter __attribute__((vector_size(16)));
    union { vec v; half h[2]; } a;
    union { half v; quarter h[2]; } b;
    quarter q;
    a.v = v;
    b.v = a.h[0] + a.h[1];
    q = b.h[0] + b.h[1];
    return (q[0] + q[2]) + (q[1] + q[3]);
#elif BLOCK == 8
    typedef float half __attribute__((vector_size(16)));
    union { vec v; half h[2]; } a;
    half q;
    a.v = v;
    q = a.h[0] + a.h[1];
    return (q[0] + q[2]) + (q[1] + q[3]);
#elif BLOCK == 4
    return (v[0] + v[2]) + (v[1] + v[3]);
#else
    return v;
#endif
}
