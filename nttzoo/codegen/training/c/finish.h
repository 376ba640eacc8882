enum { PLAIN = 0, RECTIFY = 1, ADD = 2, GATE = 4 };

INLINE vec finish(vec value, int mode, float slope, const vec *gate) {
    /* What is not a number stays so, until the loss tells. */
    if (mode & RECTIFY && slope == 0.0f) value = KEEP(NOT(value <= 0.0f), value);
    else if (mode & RECTIFY) value = CHOOSE(value > 0.0f, value, value * slope);
    if (mode & GATE) value = slope == 0.0f ? KEEP(*gate > 0.0f, value) : CHOOSE(*gate > 0.0f, value, value * slope);
    return value;
}
