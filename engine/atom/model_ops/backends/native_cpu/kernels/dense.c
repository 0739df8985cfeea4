/* Norms, activation, and products of few rows, each alone or one behind the other. Matrices are
 * [inputs, outputs]: a step's rows stay in the cache, the matrix passes by.
 * Called by ../dense.py, which has checked shapes, types and strides.
 */
#include "norms.h"
#include "pool.h"

#define ROWS 6 /* of a tile: with its columns they fill the machine's registers */
#if LANES == 16
#define VECTORS 4
#else
#define VECTORS 2
#endif
#define PANEL (VECTORS * LANES) /* columns of a tile */
#define DEPTH 256               /* inputs at a time: a packed panel of them stays in the L1 cache */
#define WIDE 8                  /* vectors of columns that are read together: whole cache lines */
#define IN_PLACE 3              /* most rows for which copying the matrix would not pay */
#define PIECE (1L << 18)        /* multiplications of a piece that one thread takes: some microseconds */
#define ROW_PIECE (1L << 13)    /* numbers of rows that are only normalised or gated */

/* c[rows, vectors] (+)= a[rows, depth] · b[depth, vectors], sums in registers. */
INLINE void tile(
    const int rows, const int vectors, const float *a, long a_stride, const float *b, long b_stride,
    float *c, long c_stride, long depth, int add
) {
    vec sums[ROWS][WIDE];
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 8
        for (int j = 0; j < vectors; j++)
            sums[i][j] = add ? load(c + i * c_stride + j * LANES) : (vec){0};
    for (long k = 0; k < depth; k++) {
        vec column[WIDE];
#pragma GCC unroll 8
        for (int j = 0; j < vectors; j++) column[j] = load(b + k * b_stride + j * LANES);
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            vec own = splat(a[i * a_stride + k]);
#pragma GCC unroll 8
            for (int j = 0; j < vectors; j++) sums[i][j] += own * column[j];
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 8
        for (int j = 0; j < vectors; j++) store(c + i * c_stride + j * LANES, sums[i][j]);
}

/* Up to ROWS rows times one panel. */
static void panel_tile(
    int rows, const float *a, long a_stride, const float *b, long b_stride, float *c, long c_stride,
    long depth, int add
) {
#define CASE(N)                                                                        \
    case N:                                                                            \
        tile(N, VECTORS, a, a_stride, b, b_stride, c, c_stride, depth, add);           \
        break;
    switch (rows) { CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) }
#undef CASE
}

typedef struct {
    const float *x;    /* [rows, inputs] */
    const float *w;    /* [inputs, outputs] */
    const float *bias; /* [outputs] or NULL */
    float *out;        /* [rows, outputs] */
    long rows, inputs, outputs;
} Product;

/* Copy `width` ≤ WIDE · LANES columns of w into panels, zeros behind them, and have the columns
 * next to them fetched: rows of a matrix lie pages apart, where the machine does not look ahead. */
static void pack(const float *w, long stride, long depth, long width, float *packed) {
    for (long k = 0; k < depth; k++, w += stride, packed += PANEL) {
        for (long j = 0; j < WIDE * LANES; j += 16) __builtin_prefetch(w + WIDE * LANES + j);
        if (width == WIDE * LANES) {
#pragma GCC unroll 8
            for (int j = 0; j < WIDE; j++)
                store(packed + j / VECTORS * DEPTH * PANEL + j % VECTORS * LANES, load(w + j * LANES));
        } else {
            for (long j = 0; j < WIDE * LANES; j++)
                packed[j / PANEL * DEPTH * PANEL + j % PANEL] = j < width ? w[j] : 0;
        }
    }
}

static void copy_rows(
    const float *from, long from_stride, float *to, long to_stride, int rows, long width
) {
    for (int i = 0; i < rows; i++)
        for (long j = 0; j < width; j++) to[i * to_stride + j] = from[i * from_stride + j];
}

/* out[:, column : column + width] (+)= x[:, k : k + depth] · packed panel. */
static void multiply_panel(
    const Product *p, const float *packed, long column, long width, long k, long depth
) {
    float part[ROWS * PANEL] = {0};
    for (long row = 0; row < p->rows; row += ROWS) {
        int rows = (int)MIN(ROWS, p->rows - row);
        const float *a = p->x + row * p->inputs + k;
        float *c = p->out + row * p->outputs + column;
        if (width >= PANEL) {
            panel_tile(rows, a, p->inputs, packed, PANEL, c, p->outputs, depth, k > 0);
            continue;
        }
        /* Added up front to back as well: where a column lies changes no bit of it. */
        if (k > 0) copy_rows(c, p->outputs, part, PANEL, rows, width);
        panel_tile(rows, a, p->inputs, packed, PANEL, part, PANEL, depth, k > 0);
        copy_rows(part, PANEL, c, p->outputs, rows, width);
    }
}

static void multiply_packed(const Product *p, long column, long width) {
    float packed[DEPTH * WIDE * LANES];
    for (long k = 0; k < p->inputs; k += DEPTH) {
        long depth = MIN(DEPTH, p->inputs - k);
        pack(p->w + k * p->outputs + column, p->outputs, depth, width, packed);
        for (long j = 0; j < width; j += PANEL)
            multiply_panel(p, packed + j * DEPTH, column + j, width - j, k, depth);
    }
}

/* WIDE · LANES columns for so few rows that the matrix is read in place. */
static void multiply_in_place(const Product *p, long column) {
#define DIRECT(R, V)                                                                       \
    for (int j = 0; j < WIDE; j += V)                                                      \
        tile(R, V, p->x, p->inputs, p->w + column + j * LANES, p->outputs,                 \
             p->out + column + j * LANES, p->outputs, p->inputs, 0)
    switch (p->rows) {
    case 1:
        DIRECT(1, WIDE);
        break;
    case 2:
        DIRECT(2, 4);
        break;
    default:
        DIRECT(3, 4);
    }
#undef DIRECT
}

static void multiply_columns(const Product *p, long column, long width) {
    if (p->rows <= IN_PLACE && width == WIDE * LANES)
        multiply_in_place(p, column);
    else
        multiply_packed(p, column, width);
    if (p->bias)
        for (long row = 0; row < p->rows; row++)
            for (long j = column; j < column + width; j++)
                p->out[row * p->outputs + j] += p->bias[j];
}

/* Pieces of a product are WIDE vectors of its columns. */
static void multiply_part(const void *product, long first, long end) {
    const Product *p = product;
    for (long column = first * WIDE * LANES; first < end; first++, column += WIDE * LANES)
        multiply_columns(p, column, MIN(WIDE * LANES, p->outputs - column));
}

static void multiply(const Product *p, int threads) {
    long wide = WIDE * LANES, count = (p->outputs + wide - 1) / wide;
    share(multiply_part, p, count, MAX(1, PIECE / (wide * p->rows * p->inputs)), threads);
}

typedef struct {
    const float *x;  /* [rows, width] or NULL */
    float *residual; /* [rows, width] */
    const float *norm;
    float eps;
    float *out; /* [rows, width] */
    long width;
} Norm;

static void norm_part(const void *norm, long first, long end) {
    const Norm *n = norm;
    for (long row = first; row < end; row++) {
        long at = row * n->width;
        add_and_normalize(n->x ? n->x + at : 0, n->residual + at, n->norm, n->eps, n->out + at, n->width);
    }
}

static void normalize_rows(const Norm *n, long rows, int threads) {
    share(norm_part, n, rows, MAX(1, ROW_PIECE / n->width), threads);
}

typedef struct {
    const float *x; /* [rows, 2 · width]: gates, then ups */
    float *out;     /* [rows, width] */
    long width;
} Gate;

static void gate_part(const void *gates, long first, long end) {
    const Gate *g = gates;
    for (long row = first; row < end; row++) {
        const float *own = g->x + 2 * row * g->width;
        gate(own, own + g->width, g->out + row * g->width, g->width);
    }
}

static void gate_rows(const Gate *g, long rows, int threads) {
    share(gate_part, g, rows, MAX(1, ROW_PIECE / 2 / g->width), threads);
}

EXPORT void atom_linear(
    const float *x, const float *w, const float *bias, float *out, long rows, long inputs,
    long outputs, int threads
) {
    Product product = {x, w, bias, out, rows, inputs, outputs};
    multiply(&product, threads);
}

/* residual += x (NULL: nothing), normed = norm(residual), out = normed · w + bias; where gated is
 * given, gated [rows, outputs / 2] = silu(out's first half) · out's second half. */
EXPORT void atom_norm_linear(
    const float *x, float *residual, const float *norm, float eps, float *normed, const float *w,
    const float *bias, float *out, float *gated, long rows, long inputs, long outputs, int threads
) {
    Norm rms = {x, residual, norm, eps, normed, inputs};
    Product product = {normed, w, bias, out, rows, inputs, outputs};
    Gate gates = {out, gated, outputs / 2};
    normalize_rows(&rms, rows, threads);
    multiply(&product, threads);
    if (gated) gate_rows(&gates, rows, threads);
}

EXPORT void atom_add_rms_norm(
    const float *x, float *residual, const float *norm, float eps, float *out, long rows, long width,
    int threads
) {
    Norm rms = {x, residual, norm, eps, out, width};
    normalize_rows(&rms, rows, threads);
}

EXPORT void atom_silu_and_mul(const float *x, float *out, long rows, long width, int threads) {
    Gate gates = {x, out, width};
    gate_rows(&gates, rows, threads);
}
