/* Norm of q and k, rotary embedding and KV cache store, in place in a step's qkv rows.
 *
 * Called by ../attention.py. Positions and slots are checked here before anything is written: a
 * wrong one is an error of ours, and must not become a write outside the cache.
 */
#include "norms.h"

/* Rotate the halves of x [dim]; cos_sin [dim]: dim / 2 cosines, then as many sines. */
INLINE void rotate(float *x, const float *cos_sin, long dim) {
    long half = dim / 2;
    const float *cosines = cos_sin, *sines = cos_sin + half;
    for (long i = 0; i < half; i++) {
        float first = x[i], second = x[i + half];
        x[i] = first * cosines[i] - second * sines[i];
        x[i + half] = second * cosines[i] + first * sines[i];
    }
}

static int all_within(const int64_t *numbers, long count, int64_t end) {
    for (long i = 0; i < count; i++)
        if (numbers[i] < 0 || numbers[i] >= end) return 0;
    return 1;
}

/* qkv [tokens, (heads + 2 · kv_heads) · dim]: q and k are normalised (where there are weights) and
 * rotated in place, k and v copied to their slots [slot, kv_heads, dim]. 0, or what was wrong:
 * 1 a position outside the table of angles, 2 a slot outside the cache; nothing is written then. */
EXPORT int atom_rope_store(
    float *qkv, const float *q_norm, const float *k_norm, float eps, const float *cos_sin,
    const int64_t *positions, float *k_cache, float *v_cache, const int64_t *slots, long tokens,
    long heads, long kv_heads, long dim, long num_positions, long num_slots, int threads
) {
    if (!all_within(positions, tokens, num_positions)) return 1;
    if (!all_within(slots, tokens, num_slots)) return 2;
    long kv = kv_heads * dim;
#pragma omp parallel for num_threads(threads)
    for (long token = 0; token < tokens; token++) {
        float *row = qkv + token * (heads + 2 * kv_heads) * dim;
        const float *angles = cos_sin + positions[token] * dim;
        for (long head = 0; head < heads + kv_heads; head++) {
            float *x = row + head * dim;
            const float *norm = head < heads ? q_norm : k_norm;
            if (norm) normalize(x, norm, eps, x, dim);
            rotate(x, angles, dim);
        }
        const float *k = row + heads * dim, *v = k + kv;
        float *to_k = k_cache + slots[token] * kv, *to_v = v_cache + slots[token] * kv;
        for (long i = 0; i < kv; i++) to_k[i] = k[i];
        for (long i = 0; i < kv; i++) to_v[i] = v[i];
    }
    return 0;
}
