#!/usr/bin/env bash
# Ranks that are processes, over MPI: the same bits as ranks of one process, on one host and on two (network namespaces), and
# faults: each rank of a training run is killed and stopped in turn, and the run resumed. ROUNDS=20 .ci/mpi.sh does so 20 times
# in place of once, in both worlds by turns; FAULTS=2 ends after the first two. What a machine forbids is skipped visibly.
# AMBITUS=path tests a binary in place of building one, PLAIN=path also one without the feature mpi.
set -euo pipefail
cd "$(dirname "$0")/.."
root="$PWD"
rounds="${ROUNDS:-1}"
faults="${FAULTS:-}"
watchdog=5
ranks=4

say() { printf '%s\n' "$*"; }
skipped() { say "skipped: $*"; }
fail() {
    say "FAILED: $*"
    [ ! -s "${log:-}" ] || sed 's/^/    /' "$log"
    exit 1
}

if ! command -v mpirun >/dev/null; then
    (apt-get update && apt-get install -y --no-install-recommends openmpi-bin) >/dev/null 2>&1 || true
fi
if ! command -v mpirun >/dev/null; then
    skipped "ranks over MPI: mpirun is not here, and apt could not install openmpi-bin"
    exit 0
fi

work="$(mktemp -d)"
log="$work/log"
holders=()
# What still runs of this script's own binary, whose path nobody else has.
left() {
    local p
    for p in /proc/[0-9]*; do
        [ "$(readlink "$p/exe" 2>/dev/null || true)" != "$work/ambitus" ] || echo "${p#/proc/}"
    done
}
cleanup() {
    local p
    for p in $(left); do kill -KILL "$p" 2>/dev/null || true; done
    for p in "${holders[@]}"; do kill "$p" 2>/dev/null || true; done
    rm -rf "$work"
}
trap cleanup EXIT

if [ -z "${AMBITUS:-}" ]; then
    cargo build --package ambitus
    AMBITUS="${CARGO_TARGET_DIR:-target}/debug/ambitus"
fi
cp "$AMBITUS" "$work/ambitus"
ambitus="$work/ambitus"
# No more cores than are here are needed, and root is what containers have.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_btl_base_warn_component_unused=0
# Open MPI's own transports, also where others are installed.
export OMPI_MCA_pml=ob1 OMPI_MCA_btl=self,vader,tcp

one_host() { mpirun -np "$ranks" "$@"; }

# Two network namespaces with a link between them, each with a host name of its own: Open MPI sees two hosts.
hosts_why=""
make_hosts() {
    local a b
    [ "$(id -u)" = 0 ] || { hosts_why="two hosts: network namespaces need root"; return; }
    if ! command -v ip >/dev/null; then
        (apt-get update && apt-get install -y --no-install-recommends iproute2) >/dev/null 2>&1 || true
    fi
    command -v ip >/dev/null && command -v nsenter >/dev/null || { hosts_why="two hosts: ip or nsenter is not here"; return; }
    unshare --net --uts true 2>"$work/why" || { hosts_why="two hosts: $(cat "$work/why")"; return; }
    unshare --net --uts sleep 86400 & a=$!
    unshare --net --uts sleep 86400 & b=$!
    holders=("$a" "$b")
    # Until both are in namespaces of their own.
    local own i
    own="$(readlink /proc/self/ns/net)"
    for ((i = 0; i < 100; i++)); do
        [ "$(readlink "/proc/$a/ns/net")" = "$own" ] || [ "$(readlink "/proc/$b/ns/net")" = "$own" ] || break
        sleep 0.05
    done
    {
        ip link add veth0 netns "$a" type veth peer name veth0 netns "$b" &&
            nsenter -t "$a" -n -u sh -c 'hostname ambitus-a && ip addr add 10.77.0.1/24 dev veth0 && ip link set veth0 up && ip link set lo up' &&
            nsenter -t "$b" -n -u sh -c 'hostname ambitus-b && ip addr add 10.77.0.2/24 dev veth0 && ip link set veth0 up && ip link set lo up'
    } 2>"$work/why" || { hosts_why="two hosts: $(cat "$work/why")"; return; }
    # What mpirun calls in place of ssh: HOST COMMAND…
    cat >"$work/agent" <<AGENT
#!/bin/sh
case "\$1" in 10.77.0.1) host=$a ;; 10.77.0.2) host=$b ;; *) exit 255 ;; esac
shift
exec nsenter -t "\$host" -n -u sh -c "\$*"
AGENT
    chmod +x "$work/agent"
    two_hosts() {
        nsenter -t "${holders[0]}" -n -u mpirun -np "$ranks" --host 10.77.0.1:2,10.77.0.2:2 --mca plm_rsh_agent "$work/agent" \
            --mca btl_tcp_if_include veth0 --mca oob_tcp_if_include veth0 "$@"
    }
}
make_hosts
worlds=(one_host)
if [ -z "$hosts_why" ]; then worlds+=(two_hosts); else skipped "$hosts_why"; fi

say "the same bits as ranks of one process: $ranks processes, ${worlds[*]}"
gradients() { # FOLDER OUT OPTIONS…
    local folder="$1" out="$2"
    shift 2
    "$@" "$ambitus" gradients --model "$folder" --batch "$folder/batch.safetensors" --out "$out" --threads 2 "${options[@]}"
}
alone() { "$@" --ranks "$ranks"; }
for folder in "$root/parity/f5/fixtures/v1" "$root/parity/orpheus/fixtures/tied"; do
    for strategy in full grad_op none hybrid:2; do
        options=(--sharding "$strategy")
        gradients "$folder" "$work/threads" alone >"$log" 2>&1 || fail "$folder, $strategy, ranks of one process"
        for world in "${worlds[@]}"; do
            rm -f "$work/processes"
            gradients "$folder" "$work/processes" "$world" >"$log" 2>&1 || fail "$folder, $strategy, $world"
            cmp "$work/threads" "$work/processes" || fail "$folder, $strategy, $world: other bits"
        done
    done
    # Placed: no more ranks than blocks.
    options=(--placement pipeline)
    (ranks=2; gradients "$folder" "$work/threads" alone && gradients "$folder" "$work/processes" one_host) >"$log" 2>&1 &&
        cmp "$work/threads" "$work/processes" || fail "$folder, placed: other bits, or none"
done

say "what cannot be is said"
refused() { # WORDS COMMAND…
    local words="$1" code=0
    shift
    "$@" >"$log" 2>&1 || code=$?
    [ "$code" = 2 ] && grep -qF -- "$words" "$log" || fail "exit code $code, not 2 with \"$words\": $*"
}
folder="$root/parity/orpheus/fixtures/tied"
options=(--ranks 2)
refused "--ranks 2: Open MPI started 4 processes" gradients "$folder" "$work/none" one_host
options=(--sharding hybrid:3)
refused "4 ranks are not whole groups of 3" gradients "$folder" "$work/none" one_host
# A build without the feature, if there is one.
plain="${PLAIN:-}"
if [ -n "$plain" ]; then
    refused "this build connects none" one_host "$plain" gradients --model "$folder" --batch "$folder/batch.safetensors" --out "$work/none"
fi
[ ! -e "$work/none" ] || fail "what was refused wrote a file"

# --- The watchdog ---

say "a rank that works on its own is waited for, one that hangs is not"
cargo build --quiet --package ambitus-comm --features mpi --example busy
cp "${CARGO_TARGET_DIR:-target}/debug/examples/busy" "$work/busy"
for world in "${worlds[@]}"; do
    "$world" "$work/busy" works >"$log" 2>&1 || fail "$world: a rank at work is taken for one that hangs"
    for way in idles silent; do
        code=0
        "$world" "$work/busy" "$way" >"$log" 2>&1 || code=$?
        [ "$code" = 9 ] && grep -qE "rank 0 \(host [^ )]+\) has not come to the exchange for 2 s" "$log" ||
            fail "$world: $way: exit code $code, not 9"
    done
done

# --- Faults ---

updates=24
sed 's/^save_every: .*/save_every: 2/; s/^validate_every: .*/validate_every: 0/' recipes/quickstart.yaml >"$work/recipe.yaml"
train=("$ambitus" train "$work/recipe.yaml" --memory 2GiB --updates "$updates")
one_host "${train[@]}" --run-dir "$work/whole" >"$log" 2>&1 || fail "train on $ranks processes"
alone "${train[@]}" --run-dir "$work/threads-run" >"$log" 2>&1 || fail "train on ranks of one process"
diff -r "$work/whole/export" "$work/threads-run/export" || fail "training on processes: other bits than on ranks of one process"

# The process of a rank.
process_of() {
    local p
    for p in $(left); do
        if [ "$({ tr '\0' '\n' <"/proc/$p/environ"; } 2>/dev/null | sed -n 's/^OMPI_COMM_WORLD_RANK=//p')" = "$1" ]; then
            echo "$p"
        fi
    done
}

# Sends a signal to a rank of a run after some update, checks how the run ends, and resumes it.
fault() { # WORLD SIGNAL RANK
    local world="$1" signal="$2" rank="$3" run="$work/run" i runner start took after code=0 most
    rm -rf "$run"
    "$world" "${train[@]}" --run-dir "$run" --watchdog "$watchdog" >"$log" 2>&1 &
    runner=$!
    # Anywhere before the last updates: while it computes, exchanges or saves.
    after=$((1 + RANDOM % (updates - 8)))
    while [ "$(cat "$run/metrics.jsonl" 2>/dev/null | wc -l)" -lt "$after" ]; do
        kill -0 "$runner" 2>/dev/null || fail "$world: ended before a rank was sent $signal"
        sleep 0.05
    done
    start="$(date +%s%N)"
    kill "-$signal" "$(process_of "$rank")" || fail "$world: ended before rank $rank was sent $signal"
    wait "$runner" || code=$?
    took=$((($(date +%s%N) - start) / 1000000))
    most=10000
    [ "$signal" = KILL ] || most=$((watchdog * 1000 + 10000))
    say "  $world, SIG$signal to rank $rank after update $after: over after $took ms with exit code $code"
    [ "$took" -le "$most" ] || fail "took $took ms, more than $most"
    if [ "$signal" = KILL ]; then
        [ "$code" = 137 ] || fail "exit code $code, not 137"
        grep -qE "rank $rank .*signal 9" "$log" || fail "mpirun does not name the rank"
        grep -qE "waits for .*rank $rank \(host [^ )]+\) in .+" "$log" || fail "nobody names rank, host and collective"
    else
        [ "$code" = 9 ] || fail "exit code $code, not 9"
        grep -qE "rank $rank \(host [^ )]+\) has not come to .+ for [0-9]+ s" "$log" ||
            fail "nobody names rank, host and collective"
    fi
    for ((i = 0; i < 50; i++)); do
        [ -n "$(left)" ] || break
        sleep 0.1
    done
    [ -z "$(left)" ] || fail "processes are left: $(left)"
    "$world" "$ambitus" resume "$run" >"$log" 2>&1 || fail "resume"
    diff -r "$work/whole/export" "$run/export" || fail "resumed to other bits"
}

say "faults: ranks are killed and stopped, and the run resumed (${faults:-$((rounds * ranks * 2))})"
turn=0
for ((round = 0; round < rounds; round++)); do
    for ((rank = 0; rank < ranks; rank++)); do
        for signal in KILL STOP; do
            [ "$turn" != "$faults" ] || break 3
            # Over the rounds each rank meets each signal in each world.
            fault "${worlds[(turn++ + rank + round) % ${#worlds[@]}]}" "$signal" "$rank"
        done
    done
done
