// Norms of rows, with factors and shifts per channel or per segment, and sums over rows of their gradients.
//
// n = (x - mean) r with r = 1 / sqrt(mean((x - mean)^2) + eps); an RMS norm has no mean. y = n (factor + plus) + shift,
// factor and shift being row s of a table: s = 0 without segments, else the row's segment.

// The table's row of a row; -1: the row belongs to no segment.
__device__ inline int table_row(const View& segments, i64 row) {
    return segments.data ? segment_of(segments, row) : 0;
}

// Calls f(c, k) for each four of a thread, columns from c on: of KEPT, the k-th, which is what a thread may keep of a row; then of the
// rest, with k = KEPT.
template <int KEPT, class F>
__device__ inline void fours(const Team& team, int end, F f) {
#pragma unroll
    for (int k = 0; k < KEPT; k++) {
        int c = team.first + k * team.step;
        if (c < end) f(c, k);
    }
#pragma unroll 1
    for (int c = team.first + KEPT * team.step; c < end; c += team.step) f(c, KEPT);
}

__device__ inline void clear_row(const View& y, const Team& team) {
    for (int c = team.first; c < y.pitch; c += team.step)
        put4(y, team.row * y.pitch + c, up_to_four(y.pitch - c), 0, Four());
}

// A thread's fours of a row. Those that are kept are whole.
template <int KEPT>
struct Row {
    const View& x;
    i64 at;
    Four kept[KEPT + 1];
    __device__ Row(const View& x, const Team& team) : x(x), at(team.row * x.pitch) {
        fours<KEPT>(team, x.cols, [&](int c, int k) {
            if (k < KEPT) kept[k] = get4<true>(x, at + c, 4);
        });
    }
    __device__ Four operator()(int c, int k) const { return k < KEPT ? kept[k] : get4<KEPT != 0>(x, at + c, up_to_four(x.cols - c)); }
};

template <int KEPT>
__device__ inline float mean_of(const Row<KEPT>& x, const Team& team) {
    float mean[1] = {0.0f};
    fours<KEPT>(team, x.x.cols, [&](int c, int k) { mean[0] += sum4(x(c, k)); });
    team_sum(team, mean);
    return mean[0] / x.x.cols;
}

// Every pass of a thread is over the same columns, so results may lie on operands.
template <int KEPT>
__device__ inline void norm(const norm_rows_args& a, const Team& team, int s) {
    const bool WHOLE = KEPT != 0;
    const int cols = a.y.cols;
    Row<KEPT> x(a.x, team);
    float mean = a.centred ? mean_of(x, team) : 0.0f, square[1] = {0.0f};
    fours<KEPT>(team, cols, [&](int c, int k) {
        Four d = x(c, k);
        int real = up_to_four(cols - c);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            float off = d.v[e] - mean;
            d.v[e] = WHOLE || e < real ? off * off : 0.0f;
        }
        square[0] += sum4(d);
    });
    team_sum(team, square);
    float r = 1.0f / sqrtf(square[0] / cols + a.eps);
    i64 factor_at = (i64)s * a.factor.pitch, shift_at = (i64)s * a.shift.pitch;
    fours<KEPT>(team, a.y.pitch, [&](int c, int k) {
        int real = up_to_four(cols - c);
        Four n = x(c, k), f = get4<WHOLE>(a.factor, factor_at + c, real), b = {};
        if (a.shift.data) b = get4<WHOLE>(a.shift, shift_at + c, real);
#pragma unroll
        for (int e = 0; e < 4; e++) n.v[e] = (n.v[e] - mean) * r * (f.v[e] + a.plus) + b.v[e];
        put4<WHOLE>(a.y, x.at + c, up_to_four(a.y.pitch - c), real, n);
    });
}

template <int KEPT>
__device__ inline void norm_grad_of(const norm_grad_args& a, const Team& team, int s) {
    const bool WHOLE = KEPT != 0;
    const int cols = a.dx.cols;
    Row<KEPT> x(a.x, team), dy(a.dy, team);
    float mean = a.centred ? mean_of(x, team) : 0.0f;
    i64 factor_at = (i64)s * a.factor.pitch;
    auto g_of = [&](int c, int k) {
        Four g = dy(c, k), f = get4<WHOLE>(a.factor, factor_at + c, up_to_four(cols - c));
#pragma unroll
        for (int e = 0; e < 4; e++) g.v[e] *= f.v[e] + a.plus;
        return g;
    };
    // Of (x - mean)^2, g (x - mean), g.
    float sums[3] = {0.0f, 0.0f, 0.0f};
    fours<KEPT>(team, cols, [&](int c, int k) {
        int real = up_to_four(cols - c);
        Four d = x(c, k), g = g_of(c, k), square, along;
#pragma unroll
        for (int e = 0; e < 4; e++) {
            float off = WHOLE || e < real ? d.v[e] - mean : 0.0f;
            square.v[e] = off * off;
            along.v[e] = g.v[e] * off;
        }
        sums[0] += sum4(square);
        sums[1] += sum4(along);
        sums[2] += sum4(g);
    });
    team_sum(team, sums);
    float r = 1.0f / sqrtf(sums[0] / cols + a.eps);
    float along = sums[1] * r / cols;
    float level = a.centred ? sums[2] / cols : 0.0f;
    fours<KEPT>(team, a.dx.pitch, [&](int c, int k) {
        Four d = x(c, k), g = g_of(c, k);
#pragma unroll
        for (int e = 0; e < 4; e++) d.v[e] = r * (g.v[e] - level - (d.v[e] - mean) * r * along);
        put4<WHOLE>(a.dx, x.at + c, up_to_four(a.dx.pitch - c), up_to_four(cols - c), d);
    });
    if (team.first == 0) {
        put(a.stats, 2 * team.row, mean);
        put(a.stats, 2 * team.row + 1, r);
    }
}

// Rows of whole fours are kept, as many as registers allow.
__device__ inline bool is_whole(const View& x, const View& y) {
    return x.cols % 4 == 0 && x.pitch % 4 == 0 && y.pitch == y.cols;
}

KERNEL(norm_rows) {
    Team team = row_team(a.narrow);
    if (team.row >= a.y.rows) return;
    int s = table_row(a.segments, team.row);
    if (s < 0) clear_row(a.y, team);
    else if (is_whole(a.x, a.y)) norm<4>(a, team, s);
    else norm<0>(a, team, s);
}

// dx = r (g - mean(g) - n mean(g n)) with g = dy (factor + plus), and (mean, r) of every row for `column_sums`; without
// mean(g) where no mean was taken off. Rows of no segment become zero.
KERNEL(norm_grad) {
    Team team = row_team(a.narrow);
    if (team.row >= a.dx.rows) return;
    int s = table_row(a.segments, team.row);
    if (s < 0) clear_row(a.dx, team);
    else if (is_whole(a.x, a.dx) && a.dy.pitch % 4 == 0) norm_grad_of<4>(a, team, s);
    else norm_grad_of<0>(a, team, s);
}

// Sums of dy and of dy n over rows, by segment (all rows are one where there is no table): a segment's rows are cut
// into `chunks`, a block sums 128 columns of one chunk. Warp w takes rows w, w + 8, ...; the warps' sums are added in
// order. n is of x by `stats`, or x itself.
KERNEL(column_sums) {
    __shared__ float parts[2][8][128];
    int segment = blockIdx.x / a.chunks, chunk = blockIdx.x % a.chunks;
    i64 begin = a.segments.data ? get_int(a.segments, segment) : 0;
    i64 end = a.segments.data ? get_int(a.segments, segment + 1) : a.dy.rows;
    i64 length = (end - begin + a.chunks - 1) / a.chunks;
    begin += chunk * length;
    if (begin + length < end) end = begin + length;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int c = blockIdx.y * 128 + lane * 4;
    int real = up_to_four(a.dy.cols - c);
    Four plain = {}, weighted = {};
    if (real > 0) {
        for (i64 row = begin + warp; row < end; row += 8) {
            Four dy = get4(a.dy, row * a.dy.pitch + c, real), x = get4(a.x, row * a.x.pitch + c, real);
            float mean = 0.0f, r = 1.0f;
            if (a.stats.data) {
                mean = get(a.stats, 2 * row);
                r = get(a.stats, 2 * row + 1);
            }
#pragma unroll
            for (int k = 0; k < 4; k++) {
                plain.v[k] += dy.v[k];
                weighted.v[k] += dy.v[k] * ((x.v[k] - mean) * r);
            }
        }
    }
#pragma unroll
    for (int k = 0; k < 4; k++) {
        parts[0][warp][lane * 4 + k] = plain.v[k];
        parts[1][warp][lane * 4 + k] = weighted.v[k];
    }
    __syncthreads();
    // The first four warps sum the plain sums, the others the weighted ones.
    const View& to = threadIdx.x < 128 ? a.plain : a.weighted;
    int mine = threadIdx.x % 128, column = blockIdx.y * 128 + mine;
    if (!to.data || column >= a.dy.cols) return;
    float sum = 0.0f;
    for (int w = 0; w < 8; w++) sum += parts[threadIdx.x / 128][w][mine];
    put(to, (i64)blockIdx.x * to.pitch + column, sum);
}

// Adds the sums of a segment's chunks: warp w takes chunks w, w + 8, ...; the warps' sums are added in order.
KERNEL(chunk_sums) {
    __shared__ float parts[8][32];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int c = blockIdx.x * 32 + lane;
    float sum = 0.0f;
    if (c < a.y.cols) {
        i64 first = (i64)blockIdx.y * a.chunks;
        for (int k = warp; k < a.chunks; k += 8) sum += get(a.partial, (first + k) * a.partial.pitch + c);
    }
    parts[warp][lane] = sum;
    __syncthreads();
    if (warp > 0 || c >= a.y.pitch) return;
    for (int w = 1; w < 8; w++) sum += parts[w][lane];
    put(a.y, (i64)blockIdx.y * a.y.pitch + c, sum);
}
