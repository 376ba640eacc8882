/* A network as a WebAssembly module: the host writes examples to memory, calls, and reads the answers.
 *
 * MEAN and STD, one number per channel, are defined for networks on images: `standardize` makes inputs of pixels.
 */
#include "@NAME@.h"

#include <stdint.h>

#define EXPORT(name) __attribute__((export_name(#name)))
#define COUNT @COUNT@
#define INPUTS @UPPER@_INPUTS
#define OUTPUTS @UPPER@_OUTPUTS

static _Alignas(16) float inputs[COUNT * INPUTS], outputs[COUNT * OUTPUTS], arena[@UPPER@_BATCH_ARENA + 16];

EXPORT(inputs) float *inputs_at(void) {
    return inputs;
}

EXPORT(outputs) float *outputs_at(void) {
    return outputs;
}

EXPORT(run) void run(int count) {
    if (count == 1) @NAME@_run(inputs, outputs, arena);
    else @NAME@_run_batch(inputs, outputs, count, arena);
}

#ifdef CHANNELS
static uint8_t pixels[COUNT * INPUTS];
static const float slope[CHANNELS] = {@SLOPE@}, shift[CHANNELS] = {@SHIFT@};

EXPORT(pixels) uint8_t *pixels_at(void) {
    return pixels;
}

EXPORT(standardize) void standardize(int count) {
    int i, c;
    for (i = 0; i < count * INPUTS; i += CHANNELS)
        for (c = 0; c < CHANNELS; c++) inputs[i + c] = (float)pixels[i + c] * slope[c] - shift[c];
}
#endif
