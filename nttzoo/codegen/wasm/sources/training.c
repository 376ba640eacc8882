/* A network that learns, as a WebAssembly module: the host writes pixels and labels to memory and calls. */
#include "@NAME@.h"

#include <stdint.h>

#define EXPORT(name) __attribute__((export_name(#name)))
#define COUNT @COUNT@
#define INPUTS @UPPER@_INPUTS
#define OUTPUTS @UPPER@_OUTPUTS

static _Alignas(16) float inputs[COUNT * INPUTS], outputs[COUNT * OUTPUTS], arena[@UPPER@_ARENA + 16];
static _Alignas(16) struct @NAME@_state state;
static uint8_t pixels[COUNT * INPUTS], labels[COUNT];
static const float slope[CHANNELS] = {@SLOPE@}, shift[CHANNELS] = {@SHIFT@};

EXPORT(outputs) float *outputs_at(void) {
    return outputs;
}

EXPORT(pixels) uint8_t *pixels_at(void) {
    return pixels;
}

EXPORT(labels) uint8_t *labels_at(void) {
    return labels;
}

static void standardize(int count) {
    int i, c;
    for (i = 0; i < count * INPUTS; i += CHANNELS)
        for (c = 0; c < CHANNELS; c++) inputs[i + c] = (float)pixels[i + c] * slope[c] - shift[c];
}

/* The initial weights; the optimizer starts anew. */
EXPORT(reset) void reset(void) {
    @NAME@_init(&state);
}

/* One step on the first `count` examples; returns their mean loss before it. */
EXPORT(train) float train(int count, float rate) {
    standardize(count);
    return @NAME@_train(&state, arena, inputs, labels, count, rate);
}

EXPORT(run) void run(int count) {
    int i;
    standardize(count);
    for (i = 0; i < count; i++) @NAME@_run(&state, arena, inputs + i * INPUTS, outputs + i * OUTPUTS);
}
