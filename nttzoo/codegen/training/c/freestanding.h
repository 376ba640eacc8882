/* @NAME@: a sparse network that learns, as plain C, made by nttzoo.
 *
 *     static struct @NAME@_state state;
 *     static float arena[@UPPER@_ARENA];
 *     @NAME@_init(&state);
 *     loss = @NAME@_train(&state, arena, images, labels, count, @RATE@);
 *     @NAME@_run(&state, arena, image, logits);
 *
 * One example is @INPUTS@ floats; labels are 0 to @LAST@. No heap, one thread, batches of any size from 1; of the
 * C library only sqrtf, where the machine has no instruction for it.
 * A loss or gradient that is not finite, or a label that is too large, leaves the weights as they were; what _train
 * returns is not finite then.
 */
#ifndef @UPPER@_H
#define @UPPER@_H

#include <stdint.h>

#define @UPPER@_INPUTS @INPUTS@
#define @UPPER@_OUTPUTS @OUTPUTS@
#define @UPPER@_ARENA @ARENA@
#define @UPPER@_WEIGHTS @SIZE@

struct @NAME@_state {
    float theta[@SIZE@], back[@BACK@], first[@SIZE@], second[@SIZE@], gradient[@SIZE@];
    double powers[2];
    uint32_t steps;
};

#ifdef __cplusplus
extern "C" {
#endif

/* The network's initial weights; @OPTIMIZER@ starts anew. */
void @NAME@_init(struct @NAME@_state *state);
/* One step on `count` examples with a learning rate; returns the mean loss before it. */
float @NAME@_train(struct @NAME@_state *state, float *arena, const float *images, const uint8_t *labels, int count,
                   float rate);
void @NAME@_run(struct @NAME@_state *state, float *arena, const float *image, float *logits);

#ifdef __cplusplus
}
#endif

#endif
