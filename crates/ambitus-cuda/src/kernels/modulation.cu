// Gated residuals: y = x + gate[s] f, s the row's segment. Norms with a scale and a shift per segment are in norm.cu.

// A thread reads its elements before it writes them: y may lie on x or f.
KERNEL(gated_residual) {
    Team team = row_team(a.narrow);
    if (team.row >= a.y.rows) return;
    i64 at = team.row * a.y.pitch;
    int cols = a.y.cols, s = segment_of(a.segments, team.row);
    for (int c = team.first; c < a.y.pitch; c += team.step) {
        int real = up_to_four(cols - c);
        Four x = get4(a.x, at + c, real);
        if (s >= 0) {
            Four gate = get4(a.gate, (i64)s * a.gate.pitch + c, real), f = get4(a.f, at + c, real);
#pragma unroll
            for (int k = 0; k < 4; k++) x.v[k] += gate.v[k] * f.v[k];
        }
        put4(a.y, at + c, up_to_four(a.y.pitch - c), real, x);
    }
}

// df = gate[s] dy; zero in rows of no segment.
KERNEL(gated_residual_grad) {
    Team team = row_team(a.narrow);
    if (team.row >= a.df.rows) return;
    i64 at = team.row * a.df.pitch;
    int cols = a.df.cols, s = segment_of(a.segments, team.row);
    for (int c = team.first; c < a.df.pitch; c += team.step) {
        int real = s < 0 ? 0 : up_to_four(cols - c);
        Four dy = get4(a.dy, at + c, real), gate = {};
        if (real > 0) gate = get4(a.gate, (i64)s * a.gate.pitch + c, real);
#pragma unroll
        for (int k = 0; k < 4; k++) dy.v[k] *= gate.v[k];
        put4(a.df, at + c, up_to_four(a.df.pitch - c), real, dy);
    }
}
