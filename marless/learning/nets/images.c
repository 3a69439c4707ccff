/* Convolutions and maxima of images while nets act, and gradients of convolutions, for
   marless.learning.nets.compiled_images; and images to train on, from bytes. float32, one thread, no global state.

   Each number is summed up in one order, which depends neither on the CPU nor, while nets act, on how many images there
   are. No square is written out: tiles of the result are summed up in registers from the image itself, whose squares
   consist of pieces without gaps. One image goes through all steps while it is in a core's caches. */

#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__)
enum { LANES = 16, VECTORS = 2 };
#elif defined(__AVX2__) && defined(__FMA__)
enum { LANES = 8, VECTORS = 2 };
#elif defined(__aarch64__)
enum { LANES = 4, VECTORS = 4 };
#else
#error "without AVX2 and FMA, NumPy is faster"
#endif
enum { PLACES = 6, WIDTH = LANES * VECTORS }; /* places and outputs of a tile */

typedef float vector __attribute__((vector_size(LANES * 4)));
typedef float unaligned __attribute__((vector_size(LANES * 4), aligned(4), may_alias));

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

INLINE vector load(const float *from) { return *(const unaligned *)from; }
INLINE void store(float *to, vector x) { *(unaligned *)to = x; }
INLINE long least(long a, long b) { return a < b ? a : b; }
INLINE float positive(float x) { return x < 0 ? 0 : x; } /* keeps NaN, for those who look for it */

/* A convolution, or a maximum if there are no outputs. Arrays are [height, width, depth] without gaps, one for each of
   `planes`, which are the channels of an image that has them outermost. */
struct step {
    long planes, height, width, depth; /* of what is read */
    long size, stride, padding, rows, columns; /* of the square, and its places */
    long outputs;
    const float *panels; /* [outputs / WIDTH, 1 + inputs, WIDTH]: biases, then weights in the order of the pieces */
    const int64_t *pieces; /* [planes * size], where each piece of a square begins */
    const float *from; /* none: the image that is given */
    const float *added; /* none, or [rows, columns, outputs], added to the sums */
    float *room; /* none, or [planes, height + 2 * padding, width + 2 * padding, depth], 0 at the edge: a copy of `from` */
    float *to; /* [rows, columns, outputs, or depth of a maximum]; none: the result that is wanted */
    int from_positive, to_positive; /* whether to take max(x, 0) of what is read, which needs room, and of what is written */
};

/* Some places and up to WIDTH outputs of them. */
struct tile {
    const float *from[PLACES], *added[PLACES], *panel;
    float *to[PLACES];
    long outputs;
};

INLINE void sum_tile(const int places, const int vectors, const struct step *s, const struct tile *t, float *sums) {
    vector sum[PLACES][VECTORS];
    const float *panel = t->panel, *from[PLACES];
    long length = s->size * s->depth;
    UNROLL for (int v = 0; v < vectors; v++)
        UNROLL for (int i = 0; i < places; i++) sum[i][v] = load(panel + v * LANES);
    panel += WIDTH;
    for (long p = 0; p < s->planes * s->size; p++) {
        UNROLL for (int i = 0; i < places; i++) from[i] = t->from[i] + s->pieces[p];
        for (long k = 0; k < length; k++, panel += WIDTH) {
            vector x[VECTORS];
            UNROLL for (int v = 0; v < vectors; v++) x[v] = load(panel + v * LANES);
            UNROLL for (int i = 0; i < places; i++)
                UNROLL for (int v = 0; v < vectors; v++) sum[i][v] += from[i][k] * x[v];
        }
    }
    UNROLL for (int i = 0; i < places; i++)
        UNROLL for (int v = 0; v < vectors; v++) store(sums + i * WIDTH + v * LANES, sum[i][v]);
}

static void sum(int places, const struct step *s, const struct tile *t, float *sums) {
#define CASE(I, V) case 8 * I + V: sum_tile(I, V, s, t, sums); return;
#define CASES(V) CASE(1, V) CASE(2, V) CASE(3, V) CASE(4, V) CASE(5, V) CASE(6, V)
    switch (8 * places + (least(t->outputs, WIDTH) + LANES - 1) / LANES) {
    CASES(1) CASES(2)
#if !defined(__AVX2__)
    CASES(3) CASES(4)
#endif
    }
}

static void write_tile(int places, const struct step *s, const struct tile *t, const float *sums) {
    long outputs = least(t->outputs, WIDTH);
    for (int i = 0; i < places; i++, sums += WIDTH)
        for (long o = 0; o < outputs; o++) {
            float x = s->added ? t->added[i][o] + sums[o] : sums[o];
            t->to[i][o] = s->to_positive ? positive(x) : x;
        }
}

static void convolve(const struct step *s, const float *from, float *to) {
    long wide = s->width + 2 * s->padding, places = s->rows * s->columns;
    long panel = (1 + s->planes * s->size * s->size * s->depth) * WIDTH;
    float sums[PLACES * WIDTH];
    for (long o = 0; o < s->outputs; o += WIDTH)
        for (long place = 0; place < places; place += PLACES) {
            struct tile tile = {.panel = s->panels + o / WIDTH * panel, .outputs = s->outputs - o};
            int some = (int)least(places - place, PLACES);
            for (int i = 0; i < some; i++) {
                long row = (place + i) / s->columns, column = (place + i) % s->columns;
                long at = (place + i) * s->outputs + o;
                tile.from[i] = from + (row * wide + column) * s->stride * s->depth;
                tile.to[i] = to + at;
                tile.added[i] = s->added ? s->added + at : s->added;
            }
            sum(some, s, &tile, sums);
            write_tile(some, s, &tile, sums);
        }
}

/* The middle of the room, whose edge stays 0, which does not change a sum. */
static void copy_to_room(const struct step *s, const float *from) {
    long line = s->width * s->depth, edge = s->padding * s->depth;
    for (long plane = 0; plane < s->planes; plane++) {
        float *to = s->room + (plane * (s->height + 2 * s->padding) + s->padding) * (line + 2 * edge) + edge;
        for (long row = 0; row < s->height; row++, from += line, to += line + 2 * edge)
            if (s->from_positive) for (long i = 0; i < line; i++) to[i] = positive(from[i]);
            else memcpy(to, from, (size_t)line * sizeof(float));
    }
}

/* The maximum of each channel over the pixels of a square that are in the image: at least one is. */
static void maximum(const struct step *s, const float *from, float *to) {
    for (long row = 0; row < s->rows; row++)
        for (long column = 0; column < s->columns; column++, to += s->depth) {
            long top = row * s->stride - s->padding, left = column * s->stride - s->padding;
            long bottom = least(top + s->size, s->height), right = least(left + s->size, s->width), first = 1;
            for (long i = top < 0 ? 0 : top; i < bottom; i++)
                for (long j = left < 0 ? 0 : left; j < right; j++, first = 0) {
                    const float *pixel = from + (i * s->width + j) * s->depth;
                    if (first) memcpy(to, pixel, (size_t)s->depth * sizeof(float));
                    else for (long k = 0; k < s->depth; k++) to[k] = pixel[k] < to[k] ? to[k] : pixel[k];
                }
        }
}

/* Takes each image through all steps. Distances count elements. */
void take_steps(const struct step *steps, long count, long images, const float *x, long x_image, float *out, long out_image) {
    for (long n = 0; n < images; n++, x += x_image, out += out_image)
        for (const struct step *s = steps; s < steps + count; s++) {
            const float *from = s->from ? s->from : x;
            float *to = s->to ? s->to : out;
            if (s->room) {
                copy_to_room(s, from);
                from = s->room;
            }
            if (s->outputs) convolve(s, from, to);
            else maximum(s, from, to);
        }
}

/* A convolution of several images without padding, for the gradient of its weights. Outputs come in multiples of WIDTH. */
struct gradient {
    long images, places, outputs, inputs; /* inputs of a square, without the 1 of the bias */
    const int64_t *begins; /* [places], where the square at each place begins in an image */
    const int64_t *offsets; /* [inputs], of each input from there, in the order of the weights */
    long image; /* distance of images in x */
    const float *x;
    const float *d; /* [images, places, outputs], the gradient at the results */
};

/* Adds x d^T of an image, some inputs and WIDTH outputs, to sums [inputs, outputs]. */
INLINE void add_products(const int inputs, const struct gradient *g, const float *const *x, const float *d, float *to) {
    vector sum[PLACES][VECTORS];
    UNROLL for (int i = 0; i < inputs; i++)
        UNROLL for (int v = 0; v < VECTORS; v++) sum[i][v] = load(to + i * g->outputs + v * LANES);
    const float *from[PLACES];
    UNROLL for (int i = 0; i < inputs; i++) from[i] = x[i];
    for (long place = 0; place < g->places; place++, d += g->outputs) {
        long at = g->begins[place];
        vector y[VECTORS];
        UNROLL for (int v = 0; v < VECTORS; v++) y[v] = load(d + v * LANES);
        UNROLL for (int i = 0; i < inputs; i++)
            UNROLL for (int v = 0; v < VECTORS; v++) sum[i][v] += from[i][at] * y[v];
    }
    UNROLL for (int i = 0; i < inputs; i++)
        UNROLL for (int v = 0; v < VECTORS; v++) store(to + i * g->outputs + v * LANES, sum[i][v]);
}

/* out [outputs, inputs + 1] <- the gradient of the weights and, last, of the bias. `sums` is room for as many numbers. */
void weight_gradient(const struct gradient *g, float *sums, float *out) {
    float *bias = sums + g->inputs * g->outputs;
    memset(sums, 0, (size_t)((g->inputs + 1) * g->outputs) * sizeof(float));
    for (long n = 0; n < g->images; n++) {
        const float *x = g->x + n * g->image, *d = g->d + n * g->places * g->outputs;
        for (long place = 0; place < g->places; place++)
            for (long o = 0; o < g->outputs; o++) bias[o] += d[place * g->outputs + o];
        for (long o = 0; o < g->outputs; o += WIDTH)
            for (long k = 0; k < g->inputs; k += PLACES) {
                const float *from[PLACES];
                int some = (int)least(g->inputs - k, PLACES);
                for (int i = 0; i < some; i++) from[i] = x + g->offsets[k + i];
                float *to = sums + k * g->outputs + o;
#define ADD(I) case I: add_products(I, g, from, d + o, to); break;
                switch (some) { ADD(1) ADD(2) ADD(3) ADD(4) ADD(5) ADD(6) }
            }
    }
    for (long o = 0; o < g->outputs; o++)
        for (long k = 0; k <= g->inputs; k++) out[o * (g->inputs + 1) + k] = sums[k * g->outputs + o];
}

/* out <- bytes / 255 of the next `planes` planes; a pixel of all planes has `pixel` numbers, one after another. */
INLINE void scale_planes(const int planes, long pixels, const uint8_t *const *from, long pixel, float *out) {
    for (long i = 0; i < pixels; i++)
        for (int k = 0; k < planes; k++) out[i * pixel + k] = (float)from[k][i] / 255;
}

/* out [images, pixels, planes] <- bytes / 255 of images whose planes [pixels] begin at `from` [images, planes]. */
void interleave(long images, long planes, long pixels, const uint8_t *const *from, float *out) {
    for (long n = 0; n < images; n++, from += planes, out += planes * pixels) {
        long k = 0;
        if (planes == 4) scale_planes(4, pixels, from, 4, out), k = 4; /* known to have no gaps, in half the time */
        for (; k + 4 <= planes; k += 4) scale_planes(4, pixels, from + k, planes, out + k);
        for (; k < planes; k++) scale_planes(1, pixels, from + k, planes, out + k);
    }
}

/* How many outputs a panel has, for those who write panels. */
long panel_width(void) { return WIDTH; }
