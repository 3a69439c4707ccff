/* The products and passes of training, for marless.learning.nets.compiled: float32, one thread, no global state.

   The order of additions depends on shapes only. Strides are in elements. A product is computed in blocks (Goto & van
   de Geijn 2008): a panel of the right factor is copied to a buffer, where it is aligned and stays in the caches; tiles
   of the result are summed up in registers; and what follows the product, such as a tanh, is applied to a tile while it
   is in the L1 cache. */

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
enum { LANES = 16, VECTORS = 4 };
#elif defined(__AVX2__) && defined(__FMA__)
enum { LANES = 8, VECTORS = 2 };
#elif defined(__aarch64__)
enum { LANES = 4, VECTORS = 4 };
#else
#error "without AVX2 and FMA, NumPy is faster"
#endif
enum { ROWS = 6, WIDTH = LANES * VECTORS, DEPTH = 1024 }; /* rows and columns of a tile, and rows of a panel */

typedef float vector __attribute__((vector_size(LANES * 4)));
typedef int32_t integers __attribute__((vector_size(LANES * 4)));
typedef float unaligned __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef float four __attribute__((vector_size(16)));
typedef float unaligned_four __attribute__((vector_size(16), aligned(4), may_alias));

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

INLINE vector load(const float *from) { return *(const unaligned *)from; }
INLINE void store(float *to, vector x) { *(unaligned *)to = x; }
INLINE vector choose(integers which, vector yes, vector no) {
    return (vector)((which & (integers)yes) | (~which & (integers)no));
}
/* The same for the first `count` elements of a vector; the others are 0. */
#if defined(__AVX512F__)
INLINE __mmask16 first(long count) { return (__mmask16)((1u << count) - 1); }
INLINE vector load_part(const float *from, long count) { return (vector)_mm512_maskz_loadu_ps(first(count), from); }
INLINE void store_part(float *to, vector x, long count) { _mm512_mask_storeu_ps(to, first(count), (__m512)x); }
#elif defined(__AVX2__)
INLINE __m256i first(long count) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
INLINE vector load_part(const float *from, long count) { return (vector)_mm256_maskload_ps(from, first(count)); }
INLINE void store_part(float *to, vector x, long count) { _mm256_maskstore_ps(to, first(count), (__m256)x); }
#else
INLINE vector load_part(const float *from, long count) {
    vector x = {0};
    memcpy(&x, from, (size_t)count * sizeof(float));
    return x;
}
INLINE void store_part(float *to, vector x, long count) { memcpy(to, &x, (size_t)count * sizeof(float)); }
#endif
INLINE long least(long a, long b) { return a < b ? a : b; }

/* What follows a product; the last two multiply by the derivative of a function whose values are y. */
enum then { NOTHING, TANH, RELU, TANH_SLOPE, RELU_SLOPE };

/* A rational function of least relative error on [-9, 9], where float32 ends to differ from 1: 6 units in the last place. */
INLINE vector tanh_of(vector x) {
    const vector top = 9.0f - (vector){0};
    x = choose(x > top, top, x);
    x = choose(x < -top, -top, x);
    vector u = x * x;
    vector p = (((1.3336838e-08f * u + 2.0596266e-05f) * u + 3.4948105e-03f) * u + 1.3380371e-01f) * u + 1.0f;
    vector q = (((7.7692783e-07f * u + 3.2843623e-04f) * u + 2.5874024e-02f) * u + 4.6713686e-01f) * u + 1.0f;
    return x * p / q;
}

INLINE vector applied(const enum then then, vector x, vector y) {
    const vector zero = {0};
    switch (then) {
    case TANH: return tanh_of(x);
    case RELU: return choose(x < zero, zero, x); /* keeps NaN, for those who look for it */
    case TANH_SLOPE: return x * (1.0f - y * y);
    case RELU_SLOPE: return choose(y > zero, x, zero);
    default: return x;
    }
}

struct operand { const float *at; long row, step; };
struct result { float *at; long row, step; };

/* Sums up a tile of rows x vectors * LANES results from `depth` columns of a and rows of a panel; `adds` keeps what `to` has. */
INLINE void sum_tile(const int rows, const int vectors, struct operand a, const float *panel, long depth, float *to,
                     long to_row, int adds) {
    vector sum[ROWS][VECTORS] = {0};
    for (long k = 0; k < depth; k++, a.at += a.step, panel += WIDTH) {
        vector x[VECTORS];
        UNROLL for (int v = 0; v < vectors; v++) x[v] = load(panel + v * LANES);
        UNROLL for (int i = 0; i < rows; i++)
            UNROLL for (int v = 0; v < vectors; v++) sum[i][v] += a.at[i * a.row] * x[v];
    }
    UNROLL for (int i = 0; i < rows; i++)
        UNROLL for (int v = 0; v < vectors; v++) {
            float *here = to + i * to_row + v * LANES;
            store(here, adds ? load(here) + sum[i][v] : sum[i][v]);
        }
}

static void sum(int rows, long width, struct operand a, const float *panel, long depth, float *to, long to_row, int adds) {
#define CASE(R, V) case 8 * R + V: sum_tile(R, V, a, panel, depth, to, to_row, adds); return;
#define CASES(V) CASE(1, V) CASE(2, V) CASE(3, V) CASE(4, V) CASE(5, V) CASE(6, V)
    switch (8 * rows + (width + LANES - 1) / LANES) {
    CASES(1) CASES(2)
#if !defined(__AVX2__) || defined(__AVX512F__)
    CASES(3) CASES(4)
#endif
    }
}

/* Adds what the result already holds if it does, applies what follows, and writes `rows` x `width` results. */
INLINE void finish_as(const enum then then, float *tile, int rows, long width, struct operand y, struct result out, int adds) {
    for (int i = 0; i < rows; i++) {
        float *line = tile + i * WIDTH, *to = out.at + i * out.row;
        const float *given = y.at + i * y.row;
        if (adds) for (long m = 0; m < width; m++) line[m] += to[m * out.step];
        if (out.step != 1) {
            for (long m = 0; m < width; m++) to[m * out.step] = line[m];
            continue;
        }
        long m = 0;
        const vector none = {0};
        for (; m + LANES <= width; m += LANES)
            store(to + m, applied(then, *(vector *)(line + m), then >= TANH_SLOPE ? load(given + m) : none));
        if (m < width) {
            vector rest = then >= TANH_SLOPE ? load_part(given + m, width - m) : none;
            store_part(to + m, applied(then, *(vector *)(line + m), rest), width - m);
        }
    }
}

static void finish(enum then then, float *tile, int rows, long width, struct operand y, struct result out, int adds) {
#define FINISH(THEN) case THEN: finish_as(THEN, tile, rows, width, y, out, adds); return;
    switch (then) { FINISH(NOTHING) FINISH(TANH) FINISH(RELU) FINISH(TANH_SLOPE) FINISH(RELU_SLOPE) }
}

/* Transposes 4 x 4 elements; `row` is the distance of rows in `from`. */
INLINE void transpose(const float *from, long row, float *to) {
    four a = *(const unaligned_four *)from, b = *(const unaligned_four *)(from + row);
    four c = *(const unaligned_four *)(from + 2 * row), d = *(const unaligned_four *)(from + 3 * row);
    four ab = __builtin_shufflevector(a, b, 0, 4, 1, 5), cd = __builtin_shufflevector(c, d, 0, 4, 1, 5);
    *(four *)to = __builtin_shufflevector(ab, cd, 0, 1, 4, 5);
    *(four *)(to + WIDTH) = __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
    ab = __builtin_shufflevector(a, b, 2, 6, 3, 7), cd = __builtin_shufflevector(c, d, 2, 6, 3, 7);
    *(four *)(to + 2 * WIDTH) = __builtin_shufflevector(ab, cd, 0, 1, 4, 5);
    *(four *)(to + 3 * WIDTH) = __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
}

/* Copies `depth` x `width` elements to a panel; what is missing to whole vectors becomes 0. */
static void pack(struct operand x, long depth, long width, float *panel) {
    if (x.step == 1) {
        for (long k = 0; k < depth; k++, panel += WIDTH) {
            const float *from = x.at + k * x.row;
            if (width == WIDTH)
                UNROLL for (int v = 0; v < VECTORS; v++) *(vector *)(panel + v * LANES) = load(from + v * LANES);
            else {
                memset(panel, 0, WIDTH * sizeof(float));
                memcpy(panel, from, (size_t)width * sizeof(float));
            }
        }
        return;
    }
    if (width < WIDTH) memset(panel, 0, (size_t)(depth * WIDTH) * sizeof(float));
    /* Transposed, 4 x 4 elements at a time, and each cache line of x at once. */
    for (long begin = 0; begin < depth; begin += 16) {
        long end = least(begin + 16, depth), m = 0;
        for (; m + 4 <= width; m += 4) {
            long k = begin;
            for (; k + 4 <= end; k += 4) transpose(x.at + m * x.step + k * x.row, x.step, panel + k * WIDTH + m);
            for (; k < end; k++)
                for (long i = m; i < m + 4; i++) panel[k * WIDTH + i] = x.at[i * x.step + k * x.row];
        }
        for (; m < width; m++)
            for (long k = begin; k < end; k++) panel[k * WIDTH + m] = x.at[m * x.step + k * x.row];
    }
}

/* out <- then(a x), or then(a x, y): `nets` products of [rows, depth] and [depth, columns]. */
void product(long nets, long rows, long depth, long columns,
             const float *a, long a_net, long a_row, long a_step, const float *x, long x_net, long x_row, long x_step,
             const float *y, long y_net, long y_row, float *out, long out_net, long out_row, long out_step, int then) {
    float panel[DEPTH * WIDTH] __attribute__((aligned(64))), tile[ROWS * WIDTH] __attribute__((aligned(64)));
    for (long net = 0; net < nets; net++)
        for (long m = 0; m < columns; m += WIDTH) {
            long width = least(columns - m, WIDTH);
            for (long k = 0; k < depth; k += DEPTH) {
                long deep = least(depth - k, DEPTH);
                pack((struct operand){x + net * x_net + k * x_row + m * x_step, x_row, x_step}, deep, width, panel);
                for (long r = 0; r < rows; r += ROWS) {
                    int high = (int)least(rows - r, ROWS);
                    struct operand left = {a + net * a_net + r * a_row + k * a_step, a_row, a_step};
                    struct operand given = {then >= TANH_SLOPE ? y + net * y_net + r * y_row + m : y, y_row, 1};
                    struct result to = {out + net * out_net + r * out_row + m * out_step, out_row, out_step};
                    sum(high, width, left, panel, deep, tile, WIDTH, 0);
                    finish(k + deep == depth ? (enum then)then : NOTHING, tile, high, width, given, to, k > 0);
                }
            }
        }
}

/* A layer of perceptrons: outputs [outputs, columns], inputs [inputs + 1, columns] with a last row of ones. */
struct layer {
    const float *weights; /* [nets, outputs, inputs + 1] */
    long weights_net;
    float *gradient; /* as the weights */
    long gradient_net;
    float *values; /* [nets, panels, outputs + 1, WIDTH], values of a hidden layer; the last row is 1 */
    float *sums; /* [inputs + 1, wide], room for the transposed gradient of a net: see `wide_of` */
    long outputs, inputs;
};

struct perceptrons {
    long nets, layers, columns;
    int then; /* TANH or RELU */
    float *panels; /* room for 4 panels; each has WIDTH rows, or as many as the largest layer and a row of ones */
    long panel; /* elements of one */
    struct layer *layer;
};

INLINE long panels_of(long columns) { return (columns + WIDTH - 1) / WIDTH; }
/* A row of `sums` has whole panels; but a layer of few outputs has a vector for each element of its gradient. */
INLINE int is_thin(const struct layer *layer) { return layer->outputs < 16; }
INLINE long wide_of(const struct layer *layer) {
    return is_thin(layer) ? layer->outputs * LANES : panels_of(layer->outputs) * WIDTH;
}
INLINE float *values_of(const struct perceptrons *p, const struct layer *layer, long net, long m) {
    return layer->values + (net * panels_of(p->columns) + m / WIDTH) * (layer->outputs + 1) * WIDTH;
}

/* to <- then(a x), or then(a x, y), for a panel; rows are WIDTH apart. */
static void to_panel(struct operand a, const float *x, long depth, long rows, long width, float *to, enum then then,
                     const float *y) {
    for (long r = 0; r < rows; r += ROWS) {
        int high = (int)least(rows - r, ROWS);
        struct operand left = {a.at + r * a.row, a.row, a.step}, given = {y ? y + r * WIDTH : y, WIDTH, 1};
        sum(high, width, left, x, depth, to + r * WIDTH, WIDTH, 0);
        if (then) {
            long whole = (width + LANES - 1) / LANES * LANES;
            finish(then, to + r * WIDTH, high, whole, given, (struct result){to + r * WIDTH, WIDTH, 1}, 0);
        }
    }
}

/* Outputs [nets, outputs, columns] of inputs [nets, inputs + 1, columns]. Without room for values, they are not kept. */
void forward(const struct perceptrons *p, const float *x, long x_net, long x_row, float *out, long out_net, long out_row) {
    float tile[ROWS * WIDTH] __attribute__((aligned(64)));
    const struct layer *top = p->layer + p->layers - 1;
    for (long net = 0; net < p->nets; net++)
        for (long m = 0; m < p->columns; m += WIDTH) {
            long width = least(p->columns - m, WIDTH);
            float *from = p->panels;
            pack((struct operand){x + net * x_net + m, x_row, 1}, p->layer->inputs + 1, width, from);
            for (const struct layer *l = p->layer; l < top; l++) {
                float *to = p->panels + p->panel * (from == p->panels + p->panel ? 2 : 1);
                if (l->values) to = values_of(p, l, net, m);
                for (long v = 0; v < WIDTH && !l->values; v++) to[l->outputs * WIDTH + v] = 1;
                struct operand a = {l->weights + net * l->weights_net, l->inputs + 1, 1};
                to_panel(a, from, l->inputs + 1, l->outputs, width, to, (enum then)p->then, 0);
                from = to;
            }
            for (long r = 0; r < top->outputs; r += ROWS) {
                int high = (int)least(top->outputs - r, ROWS);
                struct operand a = {top->weights + net * top->weights_net + r * (top->inputs + 1), top->inputs + 1, 1};
                struct result there = {out + net * out_net + r * out_row + m, out_row, 1};
                sum(high, width, a, from, top->inputs + 1, tile, WIDTH, 0);
                finish(NOTHING, tile, high, width, (struct operand){0}, there, 0);
            }
        }
}

/* sums [inputs, outputs, LANES] += d x^T, lane by lane: for few outputs, with which most of a vector would be empty. */
static void add_thin(const float *d, const float *x, const struct layer *l, long width, int adds) {
    for (long i = 0; i <= l->inputs; i++)
        for (long o = 0; o < l->outputs; o++) {
            float *to = l->sums + (i * l->outputs + o) * LANES;
            vector sum = adds ? load(to) : (vector){0};
            for (long m = 0; m < width; m += LANES) sum += load(d + o * WIDTH + m) * load(x + i * WIDTH + m);
            store(to, sum);
        }
}

/* sums [inputs, outputs] += x d^T. `turned` is room for a panel. */
static void add_wide(const float *d, const float *x, const struct layer *l, long width, float *turned, int adds) {
    long wide = wide_of(l);
    for (long o = 0; o < l->outputs; o += WIDTH) {
        long high = least(l->outputs - o, WIDTH);
        pack((struct operand){d + o * WIDTH, 1, WIDTH}, width, high, turned);
        for (long i = 0; i <= l->inputs; i += ROWS)
            sum((int)least(l->inputs + 1 - i, ROWS), high, (struct operand){x + i * WIDTH, WIDTH, 1}, turned, width,
                l->sums + i * wide + o, wide, adds);
    }
}

static void write_gradient(const struct layer *l, float *to) {
    long wide = wide_of(l), inputs = l->inputs + 1;
    for (long i = 0; i < inputs; i++)
        for (long o = 0; o < l->outputs; o++) {
            if (is_thin(l)) {
                float total = 0;
                for (int v = 0; v < LANES; v++) total += l->sums[(i * l->outputs + o) * LANES + v];
                to[o * inputs + i] = total;
            } else
                to[o * inputs + i] = l->sums[i * wide + o];
        }
}

/* The gradients of the weights, given that at the outputs of the last `forward`; or, if there is room for it, d_x, the
   gradient at the inputs, [nets, inputs, columns], instead. */
void backward(const struct perceptrons *p, const float *x, long x_net, long x_row, const float *d, long d_net, long d_row,
              float *d_x, long d_x_net, long d_x_row) {
    const struct layer *top = p->layer + p->layers - 1;
    for (long net = 0; net < p->nets; net++) {
        for (long m = 0; m < p->columns; m += WIDTH) {
            long width = least(p->columns - m, WIDTH);
            float *inputs = p->panels, *turned = inputs + 3 * p->panel, *above = inputs + p->panel, *below;
            pack((struct operand){d + net * d_net + m, d_row, 1}, top->outputs, width, above);
            if (!d_x) pack((struct operand){x + net * x_net + m, x_row, 1}, p->layer->inputs + 1, width, inputs);
            for (const struct layer *l = top; l >= p->layer; l--, above = below) {
                const float *from = l == p->layer ? inputs : values_of(p, l - 1, net, m);
                below = inputs + p->panel * (above == inputs + p->panel ? 2 : 1);
                if (!d_x && is_thin(l)) add_thin(above, from, l, width, m > 0);
                else if (!d_x) add_wide(above, from, l, width, turned, m > 0);
                if (l > p->layer || d_x) {
                    struct operand a = {l->weights + net * l->weights_net, 1, l->inputs + 1};
                    enum then slope = l == p->layer ? NOTHING : p->then == TANH ? TANH_SLOPE : RELU_SLOPE;
                    to_panel(a, above, l->outputs, l->inputs, width, below, slope, from);
                }
            }
            for (long i = 0; d_x && i < p->layer->inputs; i++)
                memcpy(d_x + net * d_x_net + i * d_x_row + m, above + i * WIDTH, (size_t)width * sizeof(float));
        }
        for (const struct layer *l = p->layer; !d_x && l <= top; l++) write_gradient(l, l->gradient + net * l->gradient_net);
    }
}

/* Gated recurrent units over time; see marless.learning.nets.gru. Arrays have no gaps, but for strides that are given. */
struct gru {
    long nets, units, steps, copies;
    const float *weights; /* [nets, 3 * units, units + 1] */
    long weights_net;
    const float *input; /* [nets, 3 * units, steps * copies] */
    long input_net, input_row;
    const float *keep; /* [steps, nets, copies], 0 where memory is reset before a step */
    long keep_step, keep_net;
    const float *memory; /* [nets, units, copies], or none if it is empty at first */
    float *recurrent, *gates; /* [steps, nets, 3 * units, copies] */
    float *before, *hidden; /* [nets, units + 1, steps * copies] */
    float *d_hidden, *d_recurrent, *d_new; /* [nets, units, or 3 * units for the second, steps * copies] */
    float *panels; /* room for 4 * units + 1 rows of WIDTH */
};

#define GET(from) (whole ? load(from) : load_part(from, count))
#define PUT(to, x) do { if (whole) store(to, x); else store_part(to, x, count); } while (0)

INLINE vector sigmoid_of(vector x) { return 0.5f * tanh_of(0.5f * x) + 0.5f; }

/* One vector of a unit, before and after a step; `u` has W x and U h of r, then z, then n, `unit` panel rows apart. */
INLINE void step_unit(const struct gru *g, long net, long t, long h, long m, long count, const int whole, const float *u,
                      vector before) {
    long units = g->units, samples = g->steps * g->copies, at = ((t * g->nets + net) * 3 * units + h) * g->copies + m;
    const float *x = g->input + net * g->input_net + h * g->input_row + t * g->copies + m;
    float *gates = g->gates + at, *recurrent = g->recurrent + at;
    long unit = units * g->copies;
    vector r = sigmoid_of(GET(x) + load(u)), z = sigmoid_of(GET(x + units * g->input_row) + load(u + units * WIDTH));
    vector of_n = load(u + 2 * units * WIDTH), n = tanh_of(GET(x + 2 * units * g->input_row) + r * of_n);
    PUT(recurrent + 2 * unit, of_n);
    PUT(gates, r);
    PUT(gates + unit, z);
    PUT(gates + 2 * unit, n);
    PUT(g->hidden + (net * (units + 1) + h) * samples + t * g->copies + m, n + z * (before - n));
}

/* What a unit remembers before step t, one vector of it. */
INLINE vector remembered(const struct gru *g, long net, long t, long h, long m, long count, const int whole) {
    long samples = g->steps * g->copies;
    if (t) {
        const float *last = g->hidden + (net * (g->units + 1) + h) * samples + (t - 1) * g->copies + m;
        return GET(last) * GET(g->keep + t * g->keep_step + net * g->keep_net + m);
    }
    return g->memory ? GET(g->memory + (net * g->units + h) * g->copies + m) : (vector){0};
}

#define EACH_VECTOR(width) for (long v = 0, count = least(width, LANES); v < (width); v += LANES, count = least((width) - v, LANES))
/* Compilers make two loops of it, one for whole vectors. */
#define EITHER(call) do { if (count == LANES) { const int whole = 1; call; } else { const int whole = 0; call; } } while (0)

void gru_forward(const struct gru *g) {
    long units = g->units, samples = g->steps * g->copies;
    float *panel = g->panels, *u = panel + (units + 1) * WIDTH;
    for (long v = 0; v < WIDTH; v++) panel[units * WIDTH + v] = 1;
    for (long net = 0; net < g->nets; net++)
        for (long t = 0; t < g->steps; t++)
            for (long m = 0; m < g->copies; m += WIDTH) {
                long width = least(g->copies - m, WIDTH);
                for (long h = 0; h < units; h++)
                    EACH_VECTOR(width) {
                        float *before = g->before + (net * (units + 1) + h) * samples + t * g->copies + m + v;
                        vector x;
                        EITHER(x = remembered(g, net, t, h, m + v, count, whole); PUT(before, x));
                        store(panel + h * WIDTH + v, x);
                    }
                struct operand a = {g->weights + net * g->weights_net, units + 1, 1};
                to_panel(a, panel, units + 1, 3 * units, width, u, NOTHING, 0);
                for (long h = 0; h < units; h++)
                    EACH_VECTOR(width) {
                        const float *of = u + h * WIDTH + v;
                        vector before = load(panel + h * WIDTH + v);
                        EITHER(step_unit(g, net, t, h, m + v, count, whole, of, before));
                    }
            }
}

/* The gradients of a unit's gates, one vector of each: to `d_recurrent` and, for U h, to the panel d; returns d_h z. */
INLINE vector unit_back(const struct gru *g, long net, long t, long h, long m, long count, const int whole, float *d) {
    long units = g->units, samples = g->steps * g->copies, unit = units * g->copies, column = t * g->copies + m;
    long at = ((t * g->nets + net) * 3 * units + h) * g->copies + m;
    vector r = GET(g->gates + at), z = GET(g->gates + at + unit), n = GET(g->gates + at + 2 * unit);
    vector d_h = GET(g->d_hidden + (net * units + h) * samples + column);
    vector before = GET(g->before + (net * (units + 1) + h) * samples + column);
    vector d_new = d_h * (1.0f - n * n) * (1.0f - z);
    vector d_r = d_new * GET(g->recurrent + at + 2 * unit) * r * (1.0f - r);
    vector d_z = (before - n) * d_h * z * (1.0f - z), d_n = d_new * r;
    float *to = g->d_recurrent + (net * 3 * units + h) * samples + column;
    PUT(g->d_new + (net * units + h) * samples + column, d_new);
    PUT(to, d_r);
    PUT(to + units * samples, d_z);
    PUT(to + 2 * units * samples, d_n);
    store(d, d_r);
    store(d + units * WIDTH, d_z);
    store(d + 2 * units * WIDTH, d_n);
    return d_h * z;
}

/* Adds to the gradient of the memory before step t, which is that after step t - 1, one vector of a unit. */
INLINE void pass_back(const struct gru *g, long net, long t, long h, long m, long count, const int whole, vector carry) {
    float *last = g->d_hidden + (net * g->units + h) * g->steps * g->copies + (t - 1) * g->copies + m;
    vector sum = GET(last) + carry * GET(g->keep + t * g->keep_step + net * g->keep_net + m);
    PUT(last, sum);
}

/* Completes d_hidden, the gradient at `hidden` from above, and finds d_new and d_recurrent. */
void gru_backward(const struct gru *g) {
    long units = g->units;
    float *carry = g->panels, *d = carry + (units + 1) * WIDTH;
    for (long net = 0; net < g->nets; net++)
        for (long t = g->steps - 1; t >= 0; t--)
            for (long m = 0; m < g->copies; m += WIDTH) {
                long width = least(g->copies - m, WIDTH);
                struct operand a = {g->weights + net * g->weights_net, 1, units + 1};
                for (long h = 0; h < units; h++)
                    EACH_VECTOR(width) {
                        vector kept;
                        EITHER(kept = unit_back(g, net, t, h, m + v, count, whole, d + h * WIDTH + v));
                        if (t) EITHER(pass_back(g, net, t, h, m + v, count, whole, kept));
                    }
                if (!t) continue;
                to_panel(a, d, 3 * units, units, width, carry, NOTHING, 0);
                for (long h = 0; h < units; h++)
                    EACH_VECTOR(width) {
                        vector sum = load(carry + h * WIDTH + v);
                        EITHER(pass_back(g, net, t, h, m + v, count, whole, sum));
                    }
            }
}

/* The layout above, for those who make room: columns of a panel, and lanes of a vector. */
long panel_width(void) { return WIDTH; }
long vector_lanes(void) { return LANES; }

/* out[r, i] <- x[r, index[i]]. */
void take(long rows, long count, const float *x, long x_row, const int64_t *index, float *out, long out_row) {
    for (long r = 0; r < rows; r++, x += x_row, out += out_row)
        for (long i = 0; i < count; i++) out[i] = x[index[i]];
}

/* Scales each net's gradient to a norm of at most `limit`; writes the norms before. */
void clip(long nets, long size, float *gradient, long gradient_net, float limit, float *norm) {
    for (long net = 0; net < nets; net++, gradient += gradient_net) {
        vector parts[4] = {0};
        long i = 0;
        for (; i + 4 * LANES <= size; i += 4 * LANES)
            UNROLL for (int v = 0; v < 4; v++) {
                vector x = load(gradient + i + v * LANES);
                parts[v] += x * x;
            }
        float lanes[LANES], squares = 0;
        parts[0] = (parts[0] + parts[1]) + (parts[2] + parts[3]);
        memcpy(lanes, parts, sizeof lanes);
        for (; i < size; i++) squares += gradient[i] * gradient[i];
        for (int v = 0; v < LANES; v++) squares += lanes[v];
        norm[net] = sqrtf(squares);
        float scale = limit / (norm[net] < 1e-6f ? 1e-6f : norm[net]);
        if (!(scale >= 1))
            for (long j = 0; j < size; j++) gradient[j] *= scale;
    }
}

/* A step of Adam; see marless.learning.nets.adam. a and b have one value per net. */
void adam(long nets, long size, float *restrict flat, long flat_net, float *restrict first, long first_net,
          float *restrict second, long second_net, const float *restrict gradient, long gradient_net,
          const float *a, const float *b, float keep1, float keep2, float lr) {
    for (long net = 0; net < nets; net++) {
        float *restrict w = flat + net * flat_net, *restrict m = first + net * first_net;
        float *restrict v = second + net * second_net;
        const float *restrict g = gradient + net * gradient_net;
        for (long i = 0; i < size; i++) {
            m[i] += (1 - keep1) * (g[i] - m[i]);
            v[i] = keep2 * v[i] + (1 - keep2) * g[i] * g[i];
            w[i] -= lr * m[i] / (a[net] * sqrtf(v[i]) + b[net]);
        }
    }
}

/* e to the power of x < 88: 2^n times a Taylor polynomial of degree 7 on [-ln 2 / 2, ln 2 / 2]. */
INLINE vector exp_of(vector x) {
    const vector bottom = -87.0f - (vector){0};
    x = choose(x < bottom, bottom, x);
    vector shifted = x * 1.44269504f + 12582912.0f; /* adding 1.5 * 2^23 rounds to an integer */
    vector n = shifted - 12582912.0f, r = x - n * 0.693359375f + n * 2.12194440e-4f;
    vector p = (((r / 5040.0f + 1.0f / 720.0f) * r + 1.0f / 120.0f) * r + 1.0f / 24.0f) * r + 1.0f / 6.0f;
    p = ((p * r + 0.5f) * r + 1.0f) * r + 1.0f;
    integers power = (integers)shifted - 0x4b400000 + 127; /* the bits of 1.5 * 2^23 */
    return p * (vector)(power << 23);
}

/* The logarithm of a number >= 1: ln m = 2 artanh((m - 1) / (m + 1)) for a mantissa m in [1/sqrt 2, sqrt 2]. */
INLINE vector log_of(vector x) {
    integers bits = (integers)x, more = (bits & 0x7fffff) > 0x3504f3; /* -1 where the mantissa is above sqrt 2 */
    integers power = (bits >> 23) - 127 - more;
    vector m = (vector)(bits - (power << 23)), z = (m - 1.0f) / (m + 1.0f), u = z * z;
    vector series = (((u / 9.0f + 1.0f / 7.0f) * u + 0.2f) * u + 1.0f / 3.0f) * u + 1.0f;
    vector n = __builtin_convertvector(power, vector);
    return n * 0.693359375f + (2.0f * z * series - n * 2.12194440e-4f);
}

/* Log-probabilities, probabilities and entropies of up to LANES samples, given logits; rows are `row` apart. */
INLINE void distribution(long actions, long row, long count, const float *logit, long logit_row, const float *legal,
                         long legal_row, float illegal, float *log, float *probability, float *entropy) {
    vector x, most = {0}, sum = {0}, mean = {0};
#define WHOLE (count == LANES)
#define READ(from) (WHOLE ? load(from) : load_part(from, count))
#define LOGIT(k) (x = READ(logit + (k) * logit_row), \
                  legal ? choose(READ(legal + (k) * legal_row) > (vector){0}, x, illegal - (vector){0}) : x)
    for (long k = 0; k < actions; k++) {
        x = LOGIT(k);
        most = k ? choose(x > most, x, most) : x;
    }
    for (long k = 0; k < actions; k++) {
        x = LOGIT(k);
        sum += exp_of(x - most);
    }
    vector shift = most + log_of(sum);
    for (long k = 0; k < actions; k++) {
        x = LOGIT(k);
        x -= shift;
        vector p = exp_of(x);
        mean += p * x;
        store_part(log + k * row, x, count);
        store_part(probability + k * row, p, count);
    }
    store_part(entropy, -mean, count);
}

/* Categorical distributions of all samples: arrays [nets, actions, samples] and [nets, samples] without gaps, but for
   logits and `legal` (positive if an action is legal), which may be absent. `taken` is the log-probability of `action`. */
void categorical(long nets, long actions, long samples, const float *logit, long logit_net, long logit_row,
                 const float *legal, long legal_net, long legal_row, float illegal, const int64_t *action,
                 float *log, float *probability, float *taken, float *entropy) {
    for (long net = 0; net < nets; net++) {
        for (long m = 0; m < samples; m += LANES)
            distribution(actions, samples, least(samples - m, LANES), logit + m, logit_row, legal ? legal + m : legal,
                         legal_row, illegal, log + m, probability + m, entropy + m);
        for (long m = 0; m < samples; m++) taken[m] = log[action[m] * samples + m];
        logit += logit_net, log += actions * samples, probability += actions * samples;
        legal = legal ? legal + legal_net : legal;
        action += samples, taken += samples, entropy += samples;
    }
}

/* The gradient at the logits, given those at `taken` and `entropy`: see marless.learning.nets.heads.Categorical. */
void categorical_gradient(long nets, long actions, long samples, const float *log, const float *probability,
                          const float *entropy, const int64_t *action, const float *d_taken, const float *d_entropy,
                          float *restrict out) {
    for (long net = 0; net < nets; net++) {
        for (long k = 0; k < actions; k++, log += samples, probability += samples)
            for (long m = 0; m < samples; m++)
                out[k * samples + m] = -probability[m] * (d_entropy[m] * (log[m] + entropy[m]) + d_taken[m]);
        for (long m = 0; m < samples; m++) out[action[m] * samples + m] += d_taken[m];
        entropy += samples, action += samples, d_taken += samples, d_entropy += samples, out += actions * samples;
    }
}

/* Normal distributions of all samples: z = (action - mean) / deviation [nets, actions, samples], log-probabilities and
   entropies [nets, samples]. These have no gaps; the others have strides of nets and rows, and none between samples. */
void gaussian(long nets, long actions, long samples, const float *mean, long mean_net, long mean_row, const float *action,
              long action_net, long action_row, const float *log_std, long log_std_net, float *restrict z,
              float *restrict log_prob, float *restrict entropy) {
    const float half_log_2_pi = 0.918938533f;
    for (long net = 0; net < nets; net++, log_prob += samples, entropy += samples) {
        float total = (float)actions * (half_log_2_pi + 0.5f);
        memset(log_prob, 0, (size_t)samples * sizeof(float));
        for (long k = 0; k < actions; k++, z += samples) {
            const float *taken = action + net * action_net + k * action_row, *middle = mean + net * mean_net + k * mean_row;
            float deviation = log_std[net * log_std_net + k], inverse = expf(-deviation);
            total += deviation;
            for (long m = 0; m < samples; m++) {
                z[m] = (taken[m] - middle[m]) * inverse;
                log_prob[m] -= 0.5f * z[m] * z[m] + deviation + half_log_2_pi;
            }
        }
        for (long m = 0; m < samples; m++) entropy[m] = total;
    }
}

/* The gradients at the means, without gaps, and at the log-deviations, given those at log-probabilities and entropies:
   see marless.learning.nets.heads.Gaussian. */
void gaussian_gradient(long nets, long actions, long samples, const float *z, const float *log_std, long log_std_net,
                       const float *d_log_prob, const float *d_entropy, float *restrict out, float *d_log_std,
                       long d_log_std_net) {
    for (long net = 0; net < nets; net++, d_log_prob += samples, d_entropy += samples)
        for (long k = 0; k < actions; k++, z += samples, out += samples) {
            float inverse = expf(-log_std[net * log_std_net + k]), lanes[LANES], total = 0;
            vector sum = {0};
            for (long m = 0; m < samples; m += LANES) {
                long count = least(samples - m, LANES);
                vector here = READ(z + m), d = READ(d_log_prob + m);
                sum += (here * here - 1.0f) * d + READ(d_entropy + m);
                store_part(out + m, here * inverse * d, count);
            }
            memcpy(lanes, &sum, sizeof lanes);
            for (int v = 0; v < LANES; v++) total += lanes[v];
            d_log_std[net * d_log_std_net + k] = total;
        }
}

/* The gradient of the clipped surrogate at log-probabilities: see marless.learning.algos.ppo.losses. `out` has no gaps;
   the others have a stride of nets. */
void surrogate_gradient(long nets, long samples, const float *log_prob, long log_prob_net, const float *old, long old_net,
                        const float *advantage, long advantage_net, const float *weight, long weight_net, float clip,
                        float *out) {
    const vector zero = {0}, low = 1.0f - clip - zero, high = 1.0f + clip - zero, top = 88.0f - zero;
    for (long net = 0; net < nets; net++, out += samples)
        for (long m = 0; m < samples; m += LANES) {
            long count = least(samples - m, LANES);
            vector change = READ(log_prob + net * log_prob_net + m) - READ(old + net * old_net + m);
            vector ratio = exp_of(choose(change > top, top, change)), gain = READ(advantage + net * advantage_net + m);
            vector within = choose(ratio < low, low, choose(ratio > high, high, ratio));
            vector slope = -(ratio * gain * READ(weight + net * weight_net + m));
            store_part(out + m, choose((ratio - within) * gain > zero, zero, slope), count);
        }
}
