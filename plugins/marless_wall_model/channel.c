/* The eddy viscosity and the steps of a channel flow, for marless_wall_model.kernel: one thread, no global state.
 *
 * All is that of subgrid.py, tendency.py and pressure.py, up to rounding. It is compiled twice, for float and double.
 * Arrays of callers are [y][x][z]. Velocities are copied into arrays that have a row more on each side in x, and a
 * number more on each side in z, where the periodic neighbours stand, so that inner loops have no exceptions.
 *
 * The pressure's transform is Hartley's in x and z, whose functions cos + sin are real and belong to the same factors
 * of the second difference as Fourier's. Two layers of cells are the two parts of one complex FFT (Stockham's, of all
 * radices), whose passes run over whole rows. In y, where NumPy's version has eigenvectors, the equations of each mode
 * have three diagonals and are eliminated one after the other. */
#ifndef REAL
#include <math.h>
#include <string.h>

enum model { AMD, VREMAN, SMAGORINSKY };

struct channel {
    long nx, ny, nz, walls;
    double dx, dy, dz, viscosity;
    const void *roots_x, *roots_z; /* cos and sin of 2 pi k / n, one after the other, for each k */
    const void *pivots;            /* [ny][nz][nx]: the inverse pivots of the elimination */
    const void *lengths;           /* [ny]: the squared mixing lengths of Smagorinsky's model */
    void *u, *v, *w, *pressure;
    const void *stress; /* [walls][nx][nz] */
    void *work;
};

/* Elements of `work`. */
long work_size(long nx, long ny, long nz) {
    long layer = (nx + 2) * (nz + 2), plain = nx * nz;
    return (7 * ny + 2) * layer + 24 * layer + (ny + 1) * plain + 4 * plain;
}

static long radix_of(long n) {
    if (n % 4 == 0) return 4;
    for (long r = 2; r * r <= n; r++)
        if (n % r == 0) return r;
    return n;
}

#define REAL float
#define NAME(name) name##_float
#define SQRT sqrtf
#include "channel.c"
#undef REAL
#undef NAME
#undef SQRT
#define REAL double
#define NAME(name) name##_double
#define SQRT sqrt
#include "channel.c"
#else

/* ---- Hartley's transform ---- */

/* One pass of Stockham's FFT over n = r m numbers, each a row of `width`: `step` is the n of the first pass by this. */
static void NAME(pass)(long r, long m, long width, long n, long step, const REAL *roots, const REAL *restrict a,
                       const REAL *restrict b, REAL *restrict to_a, REAL *restrict to_b) {
    for (long p = 0; p < m; p++) {
        const REAL *a0 = a + p * width, *b0 = b + p * width;
        REAL *restrict c0 = to_a + r * p * width, *restrict d0 = to_b + r * p * width;
        long far = m * width;
        if (r == 4) {
            const REAL *a1 = a0 + far, *a2 = a1 + far, *a3 = a2 + far, *b1 = b0 + far, *b2 = b1 + far, *b3 = b2 + far;
            REAL *restrict c1 = c0 + width, *restrict c2 = c1 + width, *restrict c3 = c2 + width;
            REAL *restrict d1 = d0 + width, *restrict d2 = d1 + width, *restrict d3 = d2 + width;
            const REAL *w1 = roots + 2 * p * step, *w2 = roots + 4 * p * step, *w3 = roots + 6 * p * step;
            REAL x1 = w1[0], y1 = w1[1], x2 = w2[0], y2 = w2[1], x3 = w3[0], y3 = w3[1];
            for (long q = 0; q < width; q++) {
                REAL ea = a0[q] + a2[q], eb = b0[q] + b2[q], fa = a0[q] - a2[q], fb = b0[q] - b2[q];
                REAL ga = a1[q] + a3[q], gb = b1[q] + b3[q], ha = b1[q] - b3[q], hb = a3[q] - a1[q];
                REAL ra = fa + ha, rb = fb + hb, sa = ea - ga, sb = eb - gb, ta = fa - ha, tb = fb - hb;
                c0[q] = ea + ga;
                d0[q] = eb + gb;
                c1[q] = ra * x1 + rb * y1;
                d1[q] = rb * x1 - ra * y1;
                c2[q] = sa * x2 + sb * y2;
                d2[q] = sb * x2 - sa * y2;
                c3[q] = ta * x3 + tb * y3;
                d3[q] = tb * x3 - ta * y3;
            }
            continue;
        }
        for (long t = 0; t < r; t++) {
            REAL *restrict c = c0 + t * width, *restrict d = d0 + t * width;
            for (long q = 0; q < width; q++) c[q] = d[q] = 0;
            for (long s = 0; s < r; s++) {
                long turn = (p * t * step + s * t * (n / r)) % n;
                REAL x = roots[2 * turn], y = roots[2 * turn + 1];
                const REAL *restrict as = a0 + s * far, *restrict bs = b0 + s * far;
                for (long q = 0; q < width; q++) {
                    c[q] += as[q] * x + bs[q] * y;
                    d[q] += bs[q] * x - as[q] * y;
                }
            }
        }
    }
}

/* Hartley's transforms of two real arrays [n][width] along n. The results are in h and g, which hold the arrays at
 * first; `spare` has room for both. */
static void NAME(hartley)(long n, long width, const REAL *roots, REAL *h, REAL *g, REAL *spare) {
    REAL *a = h, *b = g, *c = spare, *d = spare + n * width;
    for (long left = n, wide = width; left > 1;) {
        long r = radix_of(left), m = left / r;
        NAME(pass)(r, m, wide, n, n / left, roots, a, b, c, d);
        REAL *was_a = a, *was_b = b;
        a = c, b = d, c = was_a, d = was_b;
        left = m, wide *= r;
    }
    const REAL half = (REAL)0.5;
    for (long k = 0; 2 * k <= n; k++) {
        long other = (n - k) % n;
        const REAL *restrict ap = a + k * width, *restrict am = a + other * width;
        const REAL *restrict bp = b + k * width, *restrict bm = b + other * width;
        REAL *restrict hp = c + k * width, *restrict gp = d + k * width;
        REAL *restrict hm = c + other * width, *restrict gm = d + other * width;
        if (k == other) {
            memcpy(hp, ap, width * sizeof(REAL));
            memcpy(gp, bp, width * sizeof(REAL));
            continue;
        }
        for (long q = 0; q < width; q++) {
            REAL sum_a = ap[q] + am[q], sum_b = bp[q] + bm[q], less_a = ap[q] - am[q], less_b = bp[q] - bm[q];
            hp[q] = half * (sum_a - less_b);
            gp[q] = half * (sum_b + less_a);
            hm[q] = half * (sum_a + less_b);
            gm[q] = half * (sum_b - less_a);
        }
    }
    if (c != h) {
        memcpy(h, c, n * width * sizeof(REAL));
        memcpy(g, d, n * width * sizeof(REAL));
    }
}

static void NAME(transpose)(long rows, long columns, const REAL *restrict from, REAL *restrict to) {
    for (long first = 0; first < columns; first += 8)
        for (long i = 0; i < rows; i++)
            for (long k = first; k < columns && k < first + 8; k++) to[k * rows + i] = from[i * columns + k];
}

/* The potential whose Laplacian stands in `field` [ny + 1][nx][nz], in its place; the last layer is 0 and spare. */
static void NAME(potential)(const struct channel *c, REAL *field, REAL *spare) {
    long nx = c->nx, nz = c->nz, ny = c->ny, plain = nx * nz;
    REAL *h = spare, *g = h + plain, *rest = g + plain;
    for (long j = 0; j < ny; j += 2) {
        REAL *f = field + j * plain;
        NAME(hartley)(nx, nz, c->roots_x, f, f + plain, rest);
        NAME(transpose)(nx, nz, f, h);
        NAME(transpose)(nx, nz, f + plain, g);
        NAME(hartley)(nz, nx, c->roots_z, h, g, rest);
        memcpy(f, h, 2 * plain * sizeof(REAL));
    }
    const REAL next = (REAL)(1 / (c->dy * c->dy));
    const REAL *pivots = c->pivots;
    for (long j = 1; j < ny; j++) {
        const REAL *restrict below = field + (j - 1) * plain, *restrict pivot = pivots + (j - 1) * plain;
        REAL *restrict here = field + j * plain;
        for (long q = 0; q < plain; q++) here[q] -= next * pivot[q] * below[q];
    }
    for (long q = 0; q < plain; q++) field[(ny - 1) * plain + q] *= pivots[(ny - 1) * plain + q];
    for (long j = ny - 2; j >= 0; j--) {
        const REAL *restrict above = field + (j + 1) * plain, *restrict pivot = pivots + j * plain;
        REAL *restrict here = field + j * plain;
        for (long q = 0; q < plain; q++) here[q] = (here[q] - next * above[q]) * pivot[q];
    }
    memset(field + ny * plain, 0, plain * sizeof(REAL));
    for (long j = 0; j < ny; j += 2) {
        REAL *f = field + j * plain;
        NAME(hartley)(nz, nx, c->roots_z, f, f + plain, rest);
        NAME(transpose)(nz, nx, f, h);
        NAME(transpose)(nz, nx, f + plain, g);
        NAME(hartley)(nx, nz, c->roots_x, h, g, rest);
        memcpy(f, h, 2 * plain * sizeof(REAL));
    }
    memset(field + ny * plain, 0, plain * sizeof(REAL));
}

/* ---- Copies with neighbours ---- */

/* The periodic neighbours of a layer [nx + 2][nz + 2] whose inner numbers are there. */
static void NAME(wrap)(long nx, long nz, REAL *layer) {
    long row = nz + 2;
    for (long i = 1; i <= nx; i++) {
        layer[i * row] = layer[i * row + nz];
        layer[i * row + nz + 1] = layer[i * row + 1];
    }
    memcpy(layer, layer + nx * row, row * sizeof(REAL));
    memcpy(layer + (nx + 1) * row, layer + row, row * sizeof(REAL));
}

static void NAME(widen)(const struct channel *c, long layers, const REAL *from, REAL *to) {
    long row = c->nz + 2, layer = (c->nx + 2) * row;
    for (long j = 0; j < layers; j++) {
        for (long i = 0; i < c->nx; i++)
            memcpy(to + j * layer + (i + 1) * row + 1, from + (j * c->nx + i) * c->nz, c->nz * sizeof(REAL));
        NAME(wrap)(c->nx, c->nz, to + j * layer);
    }
}

static void NAME(narrow)(const struct channel *c, long layers, const REAL *from, REAL *to) {
    long row = c->nz + 2, layer = (c->nx + 2) * row;
    for (long j = 0; j < layers; j++)
        for (long i = 0; i < c->nx; i++)
            memcpy(to + (j * c->nx + i) * c->nz, from + j * layer + (i + 1) * row + 1, c->nz * sizeof(REAL));
}

/* ---- Subgrid models ---- */

/* The velocity in the middle of the cells of layer j, three layers with neighbours; those beyond a boundary are that
 * of the layer before it, with the opposite sign at a wall. */
static void NAME(centre)(const struct channel *c, long j, REAL *to) {
    long nx = c->nx, nz = c->nz, row = nz + 2, layer = (nx + 2) * row, plain = nx * nz;
    long in = j < 0 ? 0 : j < c->ny ? j : c->ny - 1;
    const REAL *u = (const REAL *)c->u + in * plain, *v = (const REAL *)c->v + in * plain;
    const REAL *w = (const REAL *)c->w + in * plain;
    const REAL half = (REAL)0.5, side = j < 0 || (j == c->ny && c->walls == 2) ? -half : half;
    for (long i = 0; i < nx; i++) {
        const REAL *restrict u0 = u + i * nz, *restrict u1 = u + (i + 1) % nx * nz;
        const REAL *restrict v0 = v + i * nz, *restrict v1 = v0 + plain, *restrict w0 = w + i * nz;
        REAL *restrict uc = to + (i + 1) * row + 1, *restrict vc = uc + layer, *restrict wc = vc + layer;
        for (long k = 0; k < nz; k++) {
            uc[k] = side * (u0[k] + u1[k]);
            vc[k] = side * (v0[k] + v1[k]);
        }
        for (long k = 0; k < nz - 1; k++) wc[k] = side * (w0[k] + w0[k + 1]);
        wc[nz - 1] = side * (w0[nz - 1] + w0[0]);
    }
    for (long part = 0; part < 3; part++) NAME(wrap)(nx, nz, to + part * layer);
}

static inline REAL NAME(amd)(const REAL g[3][3], REAL xx, REAL yy, REAL zz) {
    REAL sum = 0, squares = (REAL)1e-20;
#pragma GCC unroll 3
    for (int i = 0; i < 3; i++) {
        sum -= g[i][i] * (xx * g[i][0] * g[i][0] + yy * g[i][1] * g[i][1] + zz * g[i][2] * g[i][2]);
#pragma GCC unroll 3
        for (int k = 0; k < i; k++)
            sum -= (g[i][k] + g[k][i]) * (xx * g[i][0] * g[k][0] + yy * g[i][1] * g[k][1] + zz * g[i][2] * g[k][2]);
        squares += g[i][0] * g[i][0] + g[i][1] * g[i][1] + g[i][2] * g[i][2];
    }
    return (REAL)0.3 * (sum > 0 ? sum : 0) / squares;
}

static inline REAL NAME(vreman)(const REAL g[3][3], REAL xx, REAL yy, REAL zz) {
    REAL b[3][3], squares = (REAL)1e-20;
#pragma GCC unroll 3
    for (int i = 0; i < 3; i++) {
#pragma GCC unroll 3
        for (int k = 0; k <= i; k++)
            b[i][k] = xx * g[i][0] * g[k][0] + yy * g[i][1] * g[k][1] + zz * g[i][2] * g[k][2];
        squares += g[i][0] * g[i][0] + g[i][1] * g[i][1] + g[i][2] * g[i][2];
    }
    REAL product = b[0][0] * b[1][1] - b[1][0] * b[1][0] + b[0][0] * b[2][2] - b[2][0] * b[2][0] +
                   b[1][1] * b[2][2] - b[2][1] * b[2][1];
    return (REAL)0.025 * SQRT((product > 0 ? product : 0) / squares);
}

static inline REAL NAME(smagorinsky)(const REAL g[3][3], REAL length) {
    REAL squares = 0;
#pragma GCC unroll 3
    for (int i = 0; i < 3; i++) {
        squares += 2 * g[i][i] * g[i][i];
#pragma GCC unroll 3
        for (int k = 0; k < i; k++) squares += (g[i][k] + g[k][i]) * (g[i][k] + g[k][i]);
    }
    return length * SQRT(squares);
}

/* The eddy viscosity of a row of cells. `at` are the velocities in the middle of cells of the layers below, here and
 * above, at the number before the row's first; it is inlined for each model. */
static inline __attribute__((always_inline)) void NAME(row_of_eddies)(
    const struct channel *c, enum model model, REAL length, const REAL *const at[3], const REAL *restrict u0,
    const REAL *restrict u1, const REAL *restrict v0, const REAL *restrict v1, const REAL *restrict w,
    REAL *restrict eddies) {
    long nz = c->nz, row = nz + 2, layer = (c->nx + 2) * row;
    const REAL rx = (REAL)(1 / c->dx), ry = (REAL)(1 / c->dy), rz = (REAL)(1 / c->dz), half = (REAL)0.5;
    const REAL xx = (REAL)(c->dx * c->dx), yy = (REAL)(c->dy * c->dy), zz = (REAL)(c->dz * c->dz);
    const REAL *restrict below = at[0], *restrict here = at[1], *restrict above = at[2];
    for (long k = 1; k <= nz; k++) {
        REAL g[3][3];
#pragma GCC unroll 3
        for (int part = 0; part < 3; part++) {
            const REAL *mid = here + part * layer;
            g[part][0] = half * rx * (mid[k + row] - mid[k - row]);
            g[part][1] = half * ry * (above[part * layer + k] - below[part * layer + k]);
            g[part][2] = half * rz * (mid[k + 1] - mid[k - 1]);
        }
        g[0][0] = rx * (u1[k - 1] - u0[k - 1]);
        g[1][1] = ry * (v1[k - 1] - v0[k - 1]);
        g[2][2] = rz * (w[k] - w[k - 1]);
        eddies[k - 1] = model == AMD      ? NAME(amd)(g, xx, yy, zz)
                        : model == VREMAN ? NAME(vreman)(g, xx, yy, zz)
                                          : NAME(smagorinsky)(g, length);
    }
}

/* The eddy viscosity in the middle of cells, [ny][nx][nz]. */
void NAME(eddy_viscosity)(const struct channel *c, int model, REAL *eddies) {
    long nx = c->nx, nz = c->nz, row = nz + 2, layer = (nx + 2) * row, plain = nx * nz;
    REAL *layers[3], *w = (REAL *)c->work + 9 * layer;
    for (int each = 0; each < 3; each++) layers[each] = (REAL *)c->work + 3 * each * layer;
    NAME(centre)(c, -1, layers[0]);
    NAME(centre)(c, 0, layers[1]);
    for (long j = 0; j < c->ny; j++) {
        NAME(centre)(c, j + 1, layers[2]);
        for (long i = 0; i < nx; i++) {
            const REAL *at[3], *u = (const REAL *)c->u + j * plain, *v = (const REAL *)c->v + j * plain + i * nz;
            for (int each = 0; each < 3; each++) at[each] = layers[each] + (i + 1) * row;
            const REAL *u0 = u + i * nz, *u1 = u + (i + 1) % nx * nz;
            REAL *to = eddies + j * plain + i * nz;
            memcpy(w, (const REAL *)c->w + j * plain + i * nz, nz * sizeof(REAL));
            w[nz] = w[0];
            if (model == AMD) NAME(row_of_eddies)(c, AMD, 0, at, u0, u1, v, v + plain, w, to);
            else if (model == VREMAN) NAME(row_of_eddies)(c, VREMAN, 0, at, u0, u1, v, v + plain, w, to);
            else NAME(row_of_eddies)(c, SMAGORINSKY, ((const REAL *)c->lengths)[j], at, u0, u1, v, v + plain, w, to);
        }
        REAL *last = layers[0];
        layers[0] = layers[1], layers[1] = layers[2], layers[2] = last;
    }
}

/* ---- A step ---- */

struct NAME(space) {
    REAL *u, *v, *w, *viscosity, *rate_u, *rate_v, *rate_w; /* with neighbours */
    REAL *pull_u, *pull_w;                                   /* two layers each */
    REAL *xx, *zz, *xz, *xy[2], *yz[2], *yy[2];
    REAL *field, *spare;
};

static struct NAME(space) NAME(divided)(const struct channel *c) {
    long layer = (c->nx + 2) * (c->nz + 2), ny = c->ny;
    struct NAME(space) s;
    REAL *at = c->work;
    REAL **fields[] = {&s.u, &s.w, &s.viscosity, &s.rate_u, &s.rate_w};
    for (int each = 0; each < 5; each++, at += ny * layer) *fields[each] = at;
    s.v = at, at += (ny + 1) * layer;
    s.rate_v = at, at += (ny + 1) * layer;
    s.pull_u = at, at += 2 * layer;
    s.pull_w = at, at += 2 * layer;
    REAL **layers[] = {&s.xx, &s.zz, &s.xz, &s.xy[0], &s.xy[1], &s.yz[0], &s.yz[1], &s.yy[0], &s.yy[1]};
    for (int each = 0; each < 9; each++, at += layer) *layers[each] = at;
    s.field = at, at += (ny + 1) * c->nx * c->nz;
    s.spare = at;
    return s;
}

/* The wall's pull at the places of u and w, from the stress in each cell at a wall and the direction of the flow. */
static void NAME(find_pull)(const struct channel *c, struct NAME(space) *s) {
    long nx = c->nx, nz = c->nz, row = nz + 2, layer = (nx + 2) * row;
    const REAL half = (REAL)0.5;
    for (long wall = 0; wall < c->walls; wall++) {
        long at = (wall ? c->ny - 1 : 0) * layer;
        REAL *stress = s->xx, *along = s->zz, *across = s->xz;
        NAME(widen)(c, 1, (const REAL *)c->stress + wall * nx * nz, stress);
        for (long i = 0; i <= nx; i++)
            for (long k = 0; k <= nz; k++) {
                const REAL *u = s->u + at + i * row + k, *w = s->w + at + i * row + k;
                REAL uc = half * (u[0] + u[row]), wc = half * (w[0] + w[1]), speed = SQRT(uc * uc + wc * wc);
                REAL pull = stress[i * row + k] / (speed > 0 ? speed : 1);
                along[i * row + k] = uc * pull;
                across[i * row + k] = wc * pull;
            }
        for (long i = 1; i <= nx; i++)
            for (long q = i * row + 1; q <= i * row + nz; q++) {
                s->pull_u[wall * layer + q] = half * (along[q] + along[q - row]);
                s->pull_w[wall * layer + q] = half * (across[q] + across[q - 1]);
            }
    }
}

/* The fluxes through the faces and edges in layer j. */
static void NAME(fluxes_in)(const struct channel *c, struct NAME(space) *s, long j) {
    long nx = c->nx, nz = c->nz, row = nz + 2, layer = (nx + 2) * row;
    const REAL rx = (REAL)(1 / c->dx), ry = (REAL)(1 / c->dy), rz = (REAL)(1 / c->dz);
    const REAL half = (REAL)0.5, quarter = (REAL)0.25;
    for (long i = 0; i <= nx + 1; i++) {
        const REAL *restrict u = s->u + j * layer + i * row, *restrict w = s->w + j * layer + i * row;
        const REAL *restrict v = s->v + j * layer + i * row, *restrict n = s->viscosity + j * layer + i * row;
        REAL *restrict xx = s->xx + i * row, *restrict yy = s->yy[1] + i * row, *restrict zz = s->zz + i * row;
        REAL *restrict xz = s->xz + i * row;
        if (i <= nx)
            for (long k = 1; k <= nz; k++) {
                REAL mean = half * (u[k] + u[k + row]);
                xx[k] = mean * mean - 2 * n[k] * rx * (u[k + row] - u[k]);
            }
        if (i >= 1)
            for (long k = 1; k <= nz + 1; k++) {
                REAL wide = quarter * (n[k] + n[k - row] + n[k - 1] + n[k - row - 1]);
                REAL shear = rz * (u[k] - u[k - 1]) + rx * (w[k] - w[k - row]);
                xz[k] = quarter * (u[k] + u[k - 1]) * (w[k] + w[k - row]) - wide * shear;
            }
        if (i >= 1 && i <= nx) {
            for (long k = 1; k <= nz; k++) {
                REAL mean = half * (v[k] + v[k + layer]);
                yy[k] = mean * mean - 2 * n[k] * ry * (v[k + layer] - v[k]);
            }
            for (long k = 0; k <= nz; k++) {
                REAL mean = half * (w[k] + w[k + 1]);
                zz[k] = mean * mean - 2 * n[k] * rz * (w[k + 1] - w[k]);
            }
        }
    }
}

/* The fluxes in y through the edges in face j. */
static void NAME(fluxes_through)(const struct channel *c, struct NAME(space) *s, long j, REAL *to_xy, REAL *to_yz) {
    long nx = c->nx, nz = c->nz, row = nz + 2, layer = (nx + 2) * row;
    if (j == 0 || j == c->ny) {
        const REAL sign = j == 0 ? -1 : c->walls == 2 ? 1 : 0;
        const REAL *pull_u = s->pull_u + (j && sign ? layer : 0), *pull_w = s->pull_w + (j && sign ? layer : 0);
        for (long i = 1; i <= nx; i++)
            for (long q = i * row + 1; q <= i * row + nz; q++) {
                to_xy[q] = sign ? sign * pull_u[q] : 0;
                to_yz[q] = sign ? sign * pull_w[q] : 0;
            }
        return;
    }
    const REAL rx = (REAL)(1 / c->dx), ry = (REAL)(1 / c->dy), rz = (REAL)(1 / c->dz), quarter = (REAL)0.25;
    for (long i = 1; i <= nx + 1; i++) {
        long at = j * layer + i * row;
        const REAL *restrict u = s->u + at, *restrict v = s->v + at, *restrict w = s->w + at;
        const REAL *restrict n = s->viscosity + at;
        REAL *restrict xy = to_xy + i * row, *restrict yz = to_yz + i * row;
        for (long k = 1; k <= nz; k++) {
            REAL wide = quarter * (n[k] + n[k - row] + n[k - layer] + n[k - layer - row]);
            REAL shear = ry * (u[k] - u[k - layer]) + rx * (v[k] - v[k - row]);
            xy[k] = quarter * (u[k] + u[k - layer]) * (v[k] + v[k - row]) - wide * shear;
        }
        if (i <= nx)
            for (long k = 1; k <= nz + 1; k++) {
                REAL wide = quarter * (n[k] + n[k - 1] + n[k - layer] + n[k - layer - 1]);
                REAL shear = ry * (w[k] - w[k - layer]) + rz * (v[k] - v[k - 1]);
                yz[k] = quarter * (w[k] + w[k - layer]) * (v[k] + v[k - 1]) - wide * shear;
            }
    }
}

/* A stage without its projection. A layer of velocities changes as soon as no flux needs it any more. `own` and `last`
 * are the weights of this stage's tendency and of the one before, by the length of the step. */
static void NAME(stage)(const struct channel *c, struct NAME(space) *s, REAL own, REAL last) {
    long nx = c->nx, nz = c->nz, row = nz + 2, layer = (nx + 2) * row;
    const REAL rx = (REAL)(1 / c->dx), ry = (REAL)(1 / c->dy), rz = (REAL)(1 / c->dz);
    NAME(fluxes_through)(c, s, 0, s->xy[0], s->yz[0]);
    for (long j = 0; j < c->ny; j++) {
        NAME(fluxes_in)(c, s, j);
        NAME(fluxes_through)(c, s, j + 1, s->xy[1], s->yz[1]);
        for (long i = 1; i <= nx; i++) {
            long at = i * row, to = j * layer + at;
            const REAL *restrict xx = s->xx + at, *restrict xz = s->xz + at, *restrict zz = s->zz + at;
            const REAL *restrict xy0 = s->xy[0] + at, *restrict xy1 = s->xy[1] + at;
            const REAL *restrict yz0 = s->yz[0] + at, *restrict yz1 = s->yz[1] + at;
            const REAL *restrict yy0 = s->yy[0] + at, *restrict yy1 = s->yy[1] + at;
            REAL *restrict u = s->u + to, *restrict v = s->v + to, *restrict w = s->w + to;
            REAL *restrict du = s->rate_u + to, *restrict dv = s->rate_v + to, *restrict dw = s->rate_w + to;
            for (long k = 1; k <= nz; k++) {
                REAL rate = rx * (xx[k - row] - xx[k]) + ry * (xy0[k] - xy1[k]) + rz * (xz[k] - xz[k + 1]);
                u[k] += own * rate + last * du[k];
                du[k] = rate;
            }
            for (long k = 1; k <= nz; k++) {
                REAL rate = rx * (xz[k] - xz[k + row]) + ry * (yz0[k] - yz1[k]) + rz * (zz[k - 1] - zz[k]);
                w[k] += own * rate + last * dw[k];
                dw[k] = rate;
            }
            if (j == 0) continue;
            for (long k = 1; k <= nz; k++) {
                REAL rate = rx * (xy0[k] - xy0[k + row]) + ry * (yy0[k] - yy1[k]) + rz * (yz0[k] - yz0[k + 1]);
                v[k] += own * rate + last * dv[k];
                dv[k] = rate;
            }
        }
        REAL *xy = s->xy[0], *yz = s->yz[0], *yy = s->yy[0];
        s->xy[0] = s->xy[1], s->yz[0] = s->yz[1], s->yy[0] = s->yy[1];
        s->xy[1] = xy, s->yz[1] = yz, s->yy[1] = yy;
    }
}

/* The divergence of velocities whose inner numbers alone are right, by the number of modes, into `field`. */
static void NAME(find_divergence)(const struct channel *c, struct NAME(space) *s) {
    long nx = c->nx, nz = c->nz, row = nz + 2, layer = (nx + 2) * row;
    const double modes = (double)(nx * nz);
    const REAL rx = (REAL)(1 / c->dx / modes), ry = (REAL)(1 / c->dy / modes), rz = (REAL)(1 / c->dz / modes);
    for (long j = 0; j < c->ny; j++)
        for (long i = 1; i <= nx; i++) {
            const REAL *restrict u0 = s->u + j * layer + i * row, *restrict u1 = s->u + j * layer + (i % nx + 1) * row;
            const REAL *restrict v = s->v + j * layer + i * row;
            REAL *restrict w = s->w + j * layer + i * row;
            REAL *restrict to = s->field + (j * nx + i - 1) * nz - 1;
            w[nz + 1] = w[1];
            for (long k = 1; k <= nz; k++)
                to[k] = rx * (u1[k] - u0[k]) + ry * (v[k + layer] - v[k]) + rz * (w[k + 1] - w[k]);
        }
    memset(s->field + c->ny * nx * nz, 0, nx * nz * sizeof(REAL));
}

/* Take the gradient of `field` out of the velocities, and set their neighbours. */
static void NAME(correct)(const struct channel *c, struct NAME(space) *s) {
    long nx = c->nx, nz = c->nz, row = nz + 2, layer = (nx + 2) * row;
    const REAL rx = (REAL)(1 / c->dx), ry = (REAL)(1 / c->dy), rz = (REAL)(1 / c->dz);
    for (long j = 0; j < c->ny; j++) {
        for (long i = 1; i <= nx; i++) {
            const REAL *restrict here = s->field + (j * nx + i - 1) * nz - 1;
            const REAL *restrict last = s->field + (j * nx + (i + nx - 2) % nx) * nz - 1;
            REAL *restrict u = s->u + j * layer + i * row, *restrict v = s->v + j * layer + i * row;
            REAL *restrict w = s->w + j * layer + i * row;
            for (long k = 1; k <= nz; k++) u[k] -= rx * (here[k] - last[k]);
            w[1] -= rz * (here[1] - here[nz]);
            for (long k = 2; k <= nz; k++) w[k] -= rz * (here[k] - here[k - 1]);
            if (j)
                for (long k = 1; k <= nz; k++) v[k] -= ry * (here[k] - here[k - nx * nz]);
        }
        NAME(wrap)(nx, nz, s->u + j * layer);
        NAME(wrap)(nx, nz, s->v + j * layer);
        NAME(wrap)(nx, nz, s->w + j * layer);
    }
}

/* One step of length dt: three Runge-Kutta stages, each with its projection. */
void NAME(advance)(const struct channel *c, double dt, const REAL *eddies) {
    static const double weights[3][2] = {{8.0 / 15, 0}, {5.0 / 12, -17.0 / 60}, {3.0 / 4, -5.0 / 12}};
    long cells = c->nx * c->ny * c->nz, layer = (c->nx + 2) * (c->nz + 2);
    struct NAME(space) s = NAME(divided)(c);
    NAME(widen)(c, c->ny, c->u, s.u);
    NAME(widen)(c, c->ny + 1, c->v, s.v);
    NAME(widen)(c, c->ny, c->w, s.w);
    NAME(widen)(c, c->ny, eddies, s.viscosity);
    for (long q = 0; q < c->ny * layer; q++) s.viscosity[q] += (REAL)c->viscosity;
    NAME(find_pull)(c, &s);
    memset(s.rate_u, 0, 2 * c->ny * layer * sizeof(REAL)); /* and rate_w, which follows */
    memset(s.rate_v, 0, (c->ny + 1) * layer * sizeof(REAL));
    for (int stage = 0; stage < 3; stage++) {
        NAME(stage)(c, &s, (REAL)(weights[stage][0] * dt), (REAL)(weights[stage][1] * dt));
        NAME(find_divergence)(c, &s);
        NAME(potential)(c, s.field, s.spare);
        NAME(correct)(c, &s);
    }
    NAME(narrow)(c, c->ny, s.u, c->u);
    NAME(narrow)(c, c->ny + 1, s.v, c->v);
    NAME(narrow)(c, c->ny, s.w, c->w);
    double sum = 0, share = (weights[2][0] + weights[2][1]) * dt;
    for (long q = 0; q < cells; q++) sum += s.field[q];
    REAL mean = (REAL)(sum / cells), by = (REAL)(1 / share);
    REAL *restrict pressure = c->pressure;
    for (long q = 0; q < cells; q++) pressure[q] = by * (s.field[q] - mean);
}
#endif
