/* Whether each example keeps element i; a hash of step, block, layer and element, so that the way back agrees. */
INLINE vec kept(uvec lanes, uint32_t key, uint32_t i, uint32_t threshold, float scale) {
    uvec h = (lanes + (key ^ (i * 0x9e3779b9u))) * 0x85ebca6bu;
    h ^= h >> 15;
    h *= 0xc2b2ae35u;
    h ^= h >> 13;
    h *= 0x27d4eb2fu;
    return KEEP((ivec)((h >> 8) >= threshold), splat(scale));
}
