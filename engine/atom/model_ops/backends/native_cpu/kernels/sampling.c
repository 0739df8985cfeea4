/* One draw per row by two exponential races: between groups of 64 tokens, then within the winner.
 *
 * The noise is that of backends/noise.py, to the last bits: a 32-bit hash of (seed, position,
 * number), then a series. One pass over the logits finds the maximum, a second the groups' weights.
 * Called by ../sampling.py.
 */
#include "pool.h"
#include "vector.h"

#define GROUP 64
#define WITHIN_GROUP 0x5BF03635u
#define SPREAD 0x9E3779B1u
#define LEAST -1e30f /* for rows of nothing but -inf, whose difference would be no number */
#define LN2 0.69314718055994531f

/* A 32-bit finaliser with good avalanche (lowbias32, Ellis Wellons 2018). */
INLINE uint32_t mix(uint32_t x) {
    x = (x ^ (x >> 16)) * 0x7FEB352Du;
    x = (x ^ (x >> 15)) * 0x846CA68Bu;
    return x ^ (x >> 16);
}

INLINE uint32_t row_key(int64_t seed, int64_t position) {
    uint32_t key = mix((uint32_t)seed ^ mix((uint32_t)((uint64_t)seed >> 32)));
    return mix(key ^ (uint32_t)position);
}

/* A draw of Exp(1); see exponential_noise in backends/noise.py. */
INLINE float noise(uint32_t key, uint32_t number) {
    static const float series[] = {0.999999874f,  0.500032172f, 0.33200683f,  0.270477034f,
                                   0.0483580571f, 0.75458842f,  -1.03603899f, 1.15861403f};
    float v = (float)mix((number * SPREAD) ^ key) * 0x1p-32f + 0x1p-33f;
    union { float number; uint32_t bits; } rest = {1.0f - v}, halved;
    if (rest.number < 0x1p-25f) rest.number = 0x1p-25f;
    halved.bits = (rest.bits & 0x007FFFFF) | 0x3F000000;
    int small = v < 0.5f;
    float t = small ? v : 1.0f - halved.number;
    float halvings = small ? 0 : (float)(126 - (int32_t)(rest.bits >> 23));
    float sum = series[7];
    for (int i = 6; i >= 0; i--) sum = sum * t + series[i];
    return sum * t + halvings * LN2;
}

INLINE float maximum(const float *x, long count) {
    vec most = splat(-INFINITY);
    long i = 0;
    for (; i + LANES <= count; i += LANES) most = larger(load(x + i), most);
    float result = max_of(most);
    for (; i < count; i++) result = x[i] > result ? x[i] : result;
    return result;
}

static long first_of(const float *x, long count, float value) {
    for (long i = 0; i < count; i++)
        if (x[i] == value) return i;
    return 0; /* only where nothing is a number */
}

/* e^((x - highest) · rate) of one group into weights [GROUP], zeros behind its tokens. */
INLINE float weigh(const float *x, long count, float highest, float rate, float *weights) {
    float padded[GROUP];
    if (count < GROUP) {
        for (long i = 0; i < GROUP; i++) padded[i] = i < count ? x[i] : -INFINITY;
        x = padded;
    }
    vec sum = {0};
    for (long i = 0; i < GROUP; i += LANES) {
        vec own = exponential((load(x + i) - highest) * rate);
        store(weights + i, own);
        sum += own;
    }
    return sum_of(sum);
}

static long draw(const float *x, long vocab, float temperature, uint32_t key) {
    float weights[GROUP], highest = maximum(x, vocab), rate = 1.0f / temperature;
    if (highest < LEAST) highest = LEAST;
    long winner = 0;
    float first = -1;
    for (long group = 0; group * GROUP < vocab; group++) {
        const float *own = x + group * GROUP;
        float sum = weigh(own, MIN(GROUP, vocab - group * GROUP), highest, rate, weights);
        float clock = sum / noise(key, (uint32_t)group);
        if (clock > first) first = clock, winner = group;
    }
    long start = winner * GROUP, count = MIN(GROUP, vocab - start), token = 0;
    weigh(x + start, count, highest, rate, weights);
    first = -1;
    for (long i = 0; i < count; i++) {
        float clock = weights[i] / noise(key ^ WITHIN_GROUP, (uint32_t)(start + i));
        if (clock > first) first = clock, token = i;
    }
    return start + token;
}

typedef struct {
    const float *logits, *temperature; /* [rows, vocab], [rows] */
    const int64_t *seed, *position;    /* [rows] */
    int64_t *tokens;                   /* [rows] */
    long vocab;
} Draws;

static void draw_part(const void *draws, long first, long end) {
    const Draws *d = draws;
    for (long row = first; row < end; row++) {
        const float *own = d->logits + row * d->vocab;
        d->tokens[row] = d->temperature[row] == 0
            ? first_of(own, d->vocab, maximum(own, d->vocab))
            : draw(own, d->vocab, d->temperature[row], row_key(d->seed[row], d->position[row]));
    }
}

/* logits [rows, vocab]; temperature 0 is greedy → tokens [rows], each below vocab. */
EXPORT void atom_sample(
    const float *logits, const float *temperature, const int64_t *seed, const int64_t *position,
    int64_t *tokens, long rows, long vocab, int threads
) {
    Draws draws = {logits, temperature, seed, position, tokens, vocab};
    share(draw_part, &draws, rows, 1, threads);
}
