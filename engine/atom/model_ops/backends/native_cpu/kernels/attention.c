/* Causal attention over the paged KV cache, straight from the blocks: nothing is gathered or padded.
 *
 * A task is a few neighbouring queries of one row for one KV head, together with the query heads
 * that share it: they read the same keys. It goes over the row's tokens in tiles, with a running
 * maximum and sum (online softmax, Milakov and Gimelshein 2018). Called by ../attention.py; what
 * lengths and tables say is checked here before the cache is read.
 */
#include "pool.h"
#include "vector.h"

#define TILE 64     /* tokens whose scores are kept */
#define SUMS 8      /* vectors of a result that are summed in registers at a time */
#define SHORT 64    /* longest head whose keys are scored several at a time */
#define QUERIES 8   /* query vectors of a task */
#define PIECE (1L << 15) /* numbers of keys met by queries that one thread takes at a time */

typedef struct {
    const float *q;
    float *out;                     /* [tokens, heads, dim] */
    const float *k_cache, *v_cache; /* [blocks, block_size, kv_heads, dim] */
    const int32_t *tables;          /* [rows, max_blocks] */
    const int32_t *starts;          /* [rows + 1], first token of each row in q */
    const int32_t *contexts;        /* [rows] */
    long num_blocks, block_size, max_blocks, rows;
    long heads, kv_heads, dim, q_stride; /* q_stride: floats from one token's queries to the next's */
    long window; /* newest tokens that a query attends to, 0 for all */
    long in_chunks; /* of them only those of its own window, of windows that lie end to end */
    float scale;
} Cases;

/* Where what the last of `context` tokens attends to begins. */
INLINE long first_seen(const Cases *c, long context) {
    if (!c->window) return 0;
    return c->in_chunks ? (context - 1) / c->window * c->window : MAX(0, context - c->window);
}

typedef struct {
    const float *q[QUERIES];
    long begin[QUERIES], seen[QUERIES]; /* tokens that each query attends to: begin .. seen */
    float *out[QUERIES];
    float most[QUERIES], sum[QUERIES];
    int count;
} Task;

/* Where a tile's tokens are, in floats from the start of a cache, for one KV head. */
INLINE void place(const Cases *c, long row, long kv_head, long first, long count, long *at) {
    const int32_t *table = c->tables + row * c->max_blocks;
    long token_size = c->kv_heads * c->dim;
    for (long i = 0; i < count;) {
        long position = first + i, offset = position % c->block_size;
        long slot = table[position / c->block_size] * c->block_size + offset;
        for (; i < count && offset < c->block_size; i++, offset++, slot++)
            at[i] = slot * token_size + kv_head * c->dim;
    }
}

INLINE void score_one(const float *q, const float *k, long dim, float scale, float *score) {
    vec products = {0};
    long d = 0;
    for (; d + LANES <= dim; d += LANES) products += load(q + d) * load(k + d);
    float sum = sum_of(products);
    for (; d < dim; d++) sum += q[d] * k[d];
    *score = sum * scale;
}

/* As many keys at a time as a vector has lanes, where heads are whole vectors and short: adding up
 * a vector's lanes is then as much work as the products. */
INLINE void score(const float *q, const float *keys, const long *at, long count, long dim, float scale, float *scores) {
    long i = 0;
    for (; dim <= SHORT && dim % LANES == 0 && i + LANES <= count; i += LANES) {
        vec products[LANES];
#pragma GCC unroll 16
        for (int j = 0; j < LANES; j++) {
            const float *k = keys + at[i + j];
            products[j] = load(q) * load(k);
            for (long d = LANES; d < dim; d += LANES) products[j] += load(q + d) * load(k + d);
        }
        store(scores + i, sums_of(products) * scale);
    }
    for (; i < count; i++) score_one(q, keys + at[i], dim, scale, scores + i);
}

/* `vectors` whole ones of out, from d on, in registers. */
INLINE void add_vectors(
    const int vectors, const float *weights, const float *values, const long *at, long count, long d,
    float keep, float *out
) {
    vec sums[SUMS];
#pragma GCC unroll 8
    for (int j = 0; j < vectors; j++) sums[j] = load(out + d + j * LANES) * keep;
    for (long i = 0; i < count; i++)
#pragma GCC unroll 8
        for (int j = 0; j < vectors; j++) sums[j] += weights[i] * load(values + at[i] + d + j * LANES);
#pragma GCC unroll 8
    for (int j = 0; j < vectors; j++) store(out + d + j * LANES, sums[j]);
}

/* out = out · keep + Σ weights · values; whole vectors in registers, the rest one by one. */
INLINE void add_values(const float *weights, const float *values, const long *at, long count, long dim, float keep, float *out) {
    long d = 0;
    for (; d + SUMS * LANES <= dim; d += SUMS * LANES)
        add_vectors(SUMS, weights, values, at, count, d, keep, out);
    for (; d + SUMS / 2 * LANES <= dim; d += SUMS / 2 * LANES)
        add_vectors(SUMS / 2, weights, values, at, count, d, keep, out);
    for (; d + LANES <= dim; d += LANES)
        add_vectors(1, weights, values, at, count, d, keep, out);
    for (; d < dim; d++) {
        float sum = out[d] * keep;
        for (long i = 0; i < count; i++) sum += weights[i] * values[at[i] + d];
        out[d] = sum;
    }
}

/* The largest score, `most` included. Pads scores to whole vectors, which weigh to 0. */
INLINE float largest(float *scores, long count, float most) {
    vec found = splat(most);
    for (long i = count; i % LANES; i++) scores[i] = -INFINITY;
    for (long i = 0; i < count; i += LANES) found = larger(load(scores + i), found);
    return max_of(found);
}

/* scores, padded → weights e^(score - most); returns their sum. */
INLINE float weigh(float *scores, long count, float most) {
    vec sum = {0};
    for (long i = 0; i < count; i += LANES) {
        vec weights = exponential(load(scores + i) - most);
        store(scores + i, weights);
        sum += weights;
    }
    return sum_of(sum);
}

INLINE void attend(const Cases *c, Task *task, long row, long kv_head, const long dim) {
    long longest = task->seen[task->count - 1];
    long at[TILE];
    float scores[TILE + LANES];
    for (int i = 0; i < task->count; i++) {
        task->most[i] = -INFINITY;
        task->sum[i] = 0;
        for (long d = 0; d < dim; d++) task->out[i][d] = 0;
    }
    /* Tiles lie where positions do, not where a chunk begins: a query's sum is its own. */
    for (long first = task->begin[0] / TILE * TILE; first < longest; first += TILE) {
        place(c, row, kv_head, first, MIN(TILE, longest - first), at);
        for (int i = 0; i < task->count; i++) {
            long skipped = MAX(0, task->begin[i] - first);
            long count = MIN(TILE, task->seen[i] - first) - skipped;
            if (count <= 0) continue;
            score(task->q[i], c->k_cache, at + skipped, count, dim, c->scale, scores);
            float most = largest(scores, count, task->most[i]);
            float keep = task->sum[i] > 0 ? expf(task->most[i] - most) : 0;
            task->sum[i] = task->sum[i] * keep + weigh(scores, count, most);
            task->most[i] = most;
            add_values(scores, c->v_cache, at + skipped, count, dim, keep, task->out[i]);
        }
    }
    for (int i = 0; i < task->count; i++) {
        float inverse = 1.0f / task->sum[i];
        for (long d = 0; d < dim; d++) task->out[i][d] *= inverse;
    }
}

static void attend_any(const Cases *c, Task *task, long row, long kv_head) {
    switch (c->dim) { /* sizes that the compiler then knows */
    case 32:
        return attend(c, task, row, kv_head, 32);
    case 64:
        return attend(c, task, row, kv_head, 64);
    case 128:
        return attend(c, task, row, kv_head, 128);
    default:
        return attend(c, task, row, kv_head, c->dim);
    }
}

/* Query vectors first .. end of the row's, in the order (token, head of the group). */
static void attend_group(const Cases *c, long row, long kv_head, long first, long end) {
    Task task;
    long group = c->heads / c->kv_heads;
    long history = c->contexts[row] - (c->starts[row + 1] - c->starts[row]);
    task.count = (int)(end - first);
    for (int i = 0; i < task.count; i++) {
        long token = (first + i) / group, head = kv_head * group + (first + i) % group;
        task.q[i] = c->q + (c->starts[row] + token) * c->q_stride + head * c->dim;
        task.out[i] = c->out + ((c->starts[row] + token) * c->heads + head) * c->dim;
        task.seen[i] = history + token + 1;
        task.begin[i] = first_seen(c, task.seen[i]);
    }
    attend_any(c, &task, row, kv_head);
}

/* Tasks are numbered row by row, one per KV head. */
static void attend_part(const void *cases, long first, long end) {
    const Cases *c = cases;
    for (long task = first; task < end; task++) {
        long row = task / c->kv_heads;
        long queries = (c->starts[row + 1] - c->starts[row]) * (c->heads / c->kv_heads);
        for (long query = 0; query < queries; query += QUERIES)
            attend_group(c, row, task % c->kv_heads, query, MIN(query + QUERIES, queries));
    }
}

/* 0, or what is wrong: 1 lengths, 2 a block that is outside the cache. */
static int wrong(const Cases *c, long tokens) {
    for (long row = 0; row < c->rows; row++) {
        long start = c->starts[row], end = c->starts[row + 1], context = c->contexts[row];
        if (start < 0 || end <= start || end > tokens || context < end - start) return 1;
        if (context > c->max_blocks * c->block_size) return 1;
        long reached = first_seen(c, context - (end - start) + 1);
        for (long i = reached / c->block_size; i * c->block_size < context; i++) {
            int32_t block = c->tables[row * c->max_blocks + i];
            if (block < 0 || block >= c->num_blocks) return 2;
        }
    }
    return 0;
}

/* q: of rows first_row .. rows, each starting at its `starts`; out [tokens, heads · dim]. Returns
 * what is wrong, see there; nothing is read or written then. */
EXPORT int atom_attention(
    const float *q, long q_stride, const float *k_cache, const float *v_cache, const int32_t *tables,
    const int32_t *starts, const int32_t *contexts, float *out, long tokens, long rows,
    long num_blocks, long block_size, long max_blocks, long heads, long kv_heads, long dim,
    long window, long in_chunks, float scale, int threads
) {
    Cases c = {q, out, k_cache, v_cache, tables, starts, contexts, num_blocks, block_size,
               max_blocks, rows, heads, kv_heads, dim, q_stride, window, in_chunks, scale};
    int problem = wrong(&c, tokens);
    if (problem) return problem;
    long work = 0; /* numbers of keys that queries meet */
    for (long row = 0; row < rows; row++) work += (starts[row + 1] - starts[row]) * contexts[row];
    long tasks = rows * kv_heads, each = MAX(1, work / rows * (heads / kv_heads) * dim);
    share(attend_part, &c, tasks, MAX(1, PIECE / each), threads);
    return 0;
}
