/* RMS norm and gated activation of one row; what parallel loops over rows are made of. */
#pragma once

#include "vector.h"

INLINE float inverse_rms(const float *x, long width, float eps) {
    vec squares = {0};
    long i = 0;
    for (; i + LANES <= width; i += LANES) squares += load(x + i) * load(x + i);
    float sum = sum_of(squares);
    for (; i < width; i++) sum += x[i] * x[i];
    return 1.0f / sqrtf(sum / (float)width + eps);
}

/* out = x / rms(x) · weight; out may be x. */
INLINE void normalize(const float *x, const float *weight, float eps, float *out, long width) {
    float scale = inverse_rms(x, width, eps);
    for (long i = 0; i < width; i++) out[i] = x[i] * scale * weight[i];
}

/* residual += x, if there is an x, and then out = normalised residual. */
INLINE void add_and_normalize(
    const float *x, float *residual, const float *weight, float eps, float *out, long width
) {
    if (x)
        for (long i = 0; i < width; i++) residual[i] += x[i];
    normalize(residual, weight, eps, out, width);
}

/* out = silu(gate) · up; both [width]. */
INLINE void gate(const float *gates, const float *ups, float *out, long width) {
    long i = 0;
    for (; i + LANES <= width; i += LANES) {
        vec g = load(gates + i);
        store(out + i, g / (1.0f + exponential(-g)) * load(ups + i));
    }
    for (; i < width; i++) { /* by the same function: where a column lies changes no bit of it */
        vec g = splat(gates[i]);
        out[i] = (g / (1.0f + exponential(-g)) * splat(ups[i]))[0];
    }
}
