INLINE vec inverse_root(vec x) {
#if BLOCK > 1
    int i;
    for (i = 0; i < BLOCK; i++) x[i] = 1.0f / SQRT(x[i]);
    return x;
#else
    return 1.0f / SQRT(x);
#endif
}
