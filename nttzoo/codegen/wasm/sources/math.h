/* What generated code uses of <math.h>, for a module that imports nothing. */
#ifndef NTTZOO_MATH_H
#define NTTZOO_MATH_H

/* These are instructions of WebAssembly. */
#define sqrtf(x) __builtin_sqrtf(x)
#define fabsf(x) __builtin_fabsf(x)
#define floorf(x) __builtin_floorf(x)
#define ceilf(x) __builtin_ceilf(x)
#define rintf(x) __builtin_rintf(x)

float expf(float x);
float expm1f(float x);
float logf(float x);
float log1pf(float x);
float powf(float x, float y);
float erff(float x);
float sinf(float x);
float cosf(float x);
float tanf(float x);
float asinf(float x);
float acosf(float x);
float atanf(float x);
float sinhf(float x);
float coshf(float x);
float tanhf(float x);
float asinhf(float x);
float acoshf(float x);
float atanhf(float x);

#endif
