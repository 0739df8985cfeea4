/* Vectors of the machine's width in GCC's portable notation, and what the kernels share.
 *
 * Nothing here knows a model. Pointers need no alignment beyond a float's. Compiled with
 * -march=native by ../build.py; without -ffast-math, because -inf and NaN are inputs like others.
 */
#pragma once

#include <math.h>
#include <stdint.h>

#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX__)
#define LANES 8
#else
#define LANES 4
#endif

#define INLINE static inline __attribute__((always_inline))
#define EXPORT __attribute__((visibility("default")))
#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))

typedef float vec __attribute__((vector_size(LANES * 4)));
typedef int32_t ivec __attribute__((vector_size(LANES * 4)));
typedef float unaligned __attribute__((vector_size(LANES * 4), aligned(4), may_alias));

INLINE vec load(const float *from) { return *(const unaligned *)from; }

INLINE void store(float *to, vec value) { *(unaligned *)to = value; }

INLINE vec splat(float value) { return value - (vec){0}; }

INLINE vec pick(ivec mask, vec yes, vec no) {
    return (vec)(((ivec)yes & mask) | ((ivec)no & ~mask));
}

INLINE vec larger(vec a, vec b) { return pick(a > b, a, b); }

/* Reductions by halves: a chain of LANES dependent steps would cost more than what it sums up. */
#define REDUCE(NAME, COMBINE)                                                              \
    INLINE float NAME(vec v) {                                                             \
        float lanes[LANES];                                                                \
        store(lanes, v);                                                                   \
        for (int half = LANES / 2; half; half /= 2)                                        \
            for (int i = 0; i < half; i++) lanes[i] = COMBINE(lanes[i], lanes[i + half]);  \
        return lanes[0];                                                                   \
    }
#define PLUS(a, b) ((a) + (b))
REDUCE(sum_of, PLUS)
REDUCE(max_of, MAX)

/* Lane i: the sum of rows[i], whose contents are lost. Each round adds the halves of all rows and
 * puts two of them into one; about three instructions a row, where `sum_of` takes twenty. */
INLINE vec sums_of(vec rows[LANES]) {
#if LANES == 16
    const ivec low = {0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23};
    const ivec high = {8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
#elif LANES == 8
    const ivec low = {0, 8, 1, 9, 2, 10, 3, 11}, high = {4, 12, 5, 13, 6, 14, 7, 15};
#else
    const ivec low = {0, 4, 1, 5}, high = {2, 6, 3, 7};
#endif
#pragma GCC unroll 4
    for (int half = LANES / 2; half; half /= 2)
#pragma GCC unroll 8
        for (int i = 0; i < half; i++)
            rows[i] = __builtin_shuffle(rows[i], rows[i + half], low) +
                      __builtin_shuffle(rows[i], rows[i + half], high);
    return rows[0];
}

/* e^x to 2 units in the last place: 2^n · e^r with r in [-ln 2 / 2, ln 2 / 2] (coefficients:
 * Cephes). 0 below -87.3, where results would be denormal; the most that float32 has above 88. */
INLINE vec exponential(vec x) {
    const float low = -87.3f, high = 88.0f, magic = 12582912.0f; /* 1.5 · 2^23 rounds to integers */
    ivec too_low = x < low;
    vec bounded = pick(x > high, splat(high), pick(too_low, splat(low), x));
    vec shifted = bounded * 1.44269504088896341f + magic;
    vec n = shifted - magic;
    vec r = bounded - n * 0.693359375f + n * 2.12194440e-4f;
    vec p = splat(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    ivec power = ((ivec)shifted - (ivec)splat(magic) + 127) << 23;
    return (vec)((ivec)(p * (vec)power) & ~too_low);
}
