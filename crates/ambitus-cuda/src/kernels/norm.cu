// Norms of rows, with factors and shifts per channel or per segment, and sums over rows of their gradients.
//
// n = (x - mean) r with r = 1 / sqrt(mean((x - mean)^2) + eps); an RMS norm has no mean. y = n (factor + plus) + shift,
// factor and shift being row s of a table: s = 0 without segments, else the row's segment.

// The table's row of a row; -1: the row belongs to no segment.
__device__ inline int table_row(const View& segments, i64 row) {
    return segments.data ? segment_of(segments, row) : 0;
}

// Every pass of a thread is over the same columns, so results may lie on operands.
KERNEL(norm_rows) {
    Team team = row_team(a.narrow);
    if (team.row >= a.y.rows) return;
    i64 at = team.row * a.y.pitch;
    int cols = a.y.cols, s = table_row(a.segments, team.row);
    if (s < 0) {
        for (int c = team.first; c < a.y.pitch; c += team.step)
            put4(a.y, at + c, up_to_four(a.y.pitch - c), 0, Four());
        return;
    }
    float mean[1] = {0.0f}, square[1] = {0.0f};
    if (a.centred) {
        for (int c = team.first; c < cols; c += team.step) mean[0] += sum4(get4(a.x, at + c, up_to_four(cols - c)));
        team_sum(team, mean);
        mean[0] /= cols;
    }
    for (int c = team.first; c < cols; c += team.step) {
        int real = up_to_four(cols - c);
        Four x = get4(a.x, at + c, real);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            float d = x.v[k] - mean[0];
            x.v[k] = k < real ? d * d : 0.0f;
        }
        square[0] += sum4(x);
    }
    team_sum(team, square);
    float r = 1.0f / sqrtf(square[0] / cols + a.eps);
    i64 factor_at = (i64)s * a.factor.pitch, shift_at = (i64)s * a.shift.pitch;
    for (int c = team.first; c < a.y.pitch; c += team.step) {
        int real = up_to_four(cols - c);
        Four x = get4(a.x, at + c, real), f = get4(a.factor, factor_at + c, real), b = {};
        if (a.shift.data) b = get4(a.shift, shift_at + c, real);
#pragma unroll
        for (int k = 0; k < 4; k++) x.v[k] = (x.v[k] - mean[0]) * r * (f.v[k] + a.plus) + b.v[k];
        put4(a.y, at + c, up_to_four(a.y.pitch - c), real, x);
    }
}

// dx = r (g - mean(g) - n mean(g n)) with g = dy (factor + plus), and (mean, r) of every row for `column_sums`; without
// mean(g) where no mean was taken off. Rows of no segment become zero.
KERNEL(norm_grad) {
    Team team = row_team(a.narrow);
    if (team.row >= a.dx.rows) return;
    i64 at = team.row * a.dx.pitch;
    int cols = a.dx.cols, s = table_row(a.segments, team.row);
    if (s < 0) {
        for (int c = team.first; c < a.dx.pitch; c += team.step)
            put4(a.dx, at + c, up_to_four(a.dx.pitch - c), 0, Four());
        return;
    }
    float mean[1] = {0.0f};
    if (a.centred) {
        for (int c = team.first; c < cols; c += team.step) mean[0] += sum4(get4(a.x, at + c, up_to_four(cols - c)));
        team_sum(team, mean);
        mean[0] /= cols;
    }
    // Of (x - mean)^2, g (x - mean), g.
    float sums[3] = {0.0f, 0.0f, 0.0f};
    i64 factor_at = (i64)s * a.factor.pitch;
    for (int c = team.first; c < cols; c += team.step) {
        int real = up_to_four(cols - c);
        Four x = get4(a.x, at + c, real), g = get4(a.dy, at + c, real), f = get4(a.factor, factor_at + c, real);
        Four square, along;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            float d = k < real ? x.v[k] - mean[0] : 0.0f;
            g.v[k] *= f.v[k] + a.plus;
            square.v[k] = d * d;
            along.v[k] = g.v[k] * d;
        }
        sums[0] += sum4(square);
        sums[1] += sum4(along);
        sums[2] += sum4(g);
    }
    team_sum(team, sums);
    float r = 1.0f / sqrtf(sums[0] / cols + a.eps);
    float along = sums[1] * r / cols;
    float level = a.centred ? sums[2] / cols : 0.0f;
    for (int c = team.first; c < a.dx.pitch; c += team.step) {
        int real = up_to_four(cols - c);
        Four x = get4(a.x, at + c, real), g = get4(a.dy, at + c, real), f = get4(a.factor, factor_at + c, real);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            float n = (x.v[k] - mean[0]) * r;
            x.v[k] = r * (g.v[k] * (f.v[k] + a.plus) - level - n * along);
        }
        put4(a.dx, at + c, up_to_four(a.dx.pitch - c), real, x);
    }
    if (team.first == 0) {
        put(a.stats, 2 * team.row, mean[0]);
        put(a.stats, 2 * team.row + 1, r);
    }
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
