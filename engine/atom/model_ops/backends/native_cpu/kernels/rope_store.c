/* Norm of q and k, rotary embedding and KV cache store, in place in a step's qkv rows.
 *
 * Called by ../attention.py. Positions and slots are checked here before anything is written: a
 * wrong one is an error of ours, and must not become a write outside the cache.
 */
#include "norms.h"
#include "pool.h"

#define PIECE (1L << 12) /* numbers that one thread takes at a time */

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

typedef struct {
    float *qkv;
    const float *q_norm, *k_norm, *cos_sin;
    const int64_t *positions, *slots;
    float *k_cache, *v_cache;
    long heads, kv_heads, dim;
    float eps;
} Rows;

static void place_token(const Rows *r, long token) {
    long dim = r->dim, kv = r->kv_heads * dim;
    float *row = r->qkv + token * (r->heads * dim + 2 * kv);
    const float *angles = r->cos_sin + r->positions[token] * dim;
    for (long head = 0; head < r->heads + r->kv_heads; head++) {
        float *x = row + head * dim;
        const float *norm = head < r->heads ? r->q_norm : r->k_norm;
        if (norm) normalize(x, norm, r->eps, x, dim);
        rotate(x, angles, dim);
    }
    const float *k = row + r->heads * dim, *v = k + kv;
    float *to_k = r->k_cache + r->slots[token] * kv, *to_v = r->v_cache + r->slots[token] * kv;
    for (long i = 0; i < kv; i++) to_k[i] = k[i];
    for (long i = 0; i < kv; i++) to_v[i] = v[i];
}

static void place_part(const void *rows, long first, long end) {
    for (long token = first; token < end; token++) place_token(rows, token);
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
    Rows rows = {qkv, q_norm, k_norm, cos_sin, positions, slots, k_cache, v_cache, heads, kv_heads,
                 dim, eps};
    share(place_part, &rows, tokens, MAX(1, PIECE / ((heads + 2 * kv_heads) * dim)), threads);
    return 0;
}
