#!/usr/bin/env bash
# Checks and times this project on a GPU, from an unpacked bundle (tools/bundle.sh) or a build: op tests on the device,
# traces of the device held against those of the CPU backend, single ops and whole steps timed, PyTorch beside them where
# python3 (or PYTHON) has it. Writes OUT/result.json, OUT/table.txt and one log a check; 0 when nothing failed. Takes at
# most six minutes, or --seconds.
# usage: tools/device_check.sh [--out DIRECTORY] [--device cuda|emulated|cpu] [--only tests,traces,ops,steps,peer]
#                              [--build DIRECTORY] [--seconds N] [--sanitize]
#   --device    what is checked (cuda); the others are for trying the script where no GPU is
#   --build     programs of this build directory instead of a bundle's
#   --sanitize  instead of all that: the op tests under compute-sanitizer's four tools (tens of minutes)
set -uo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
out="$PWD/device_check"
device=cuda
only=tests,traces,ops,steps,peer
build=""
seconds=345
sanitize=0
while [[ $# -gt 0 ]]; do
  case "$1" in
    -h | --help) sed -n '2,11s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    --out) out="$(realpath -m "${2:?}")"; shift 2 ;;
    --device) device="${2:?}"; shift 2 ;;
    --only) only="${2:?}"; shift 2 ;;
    --build) build="$(realpath "${2:?}")"; shift 2 ;;
    --seconds) seconds="${2:?}"; shift 2 ;;
    --sanitize) sanitize=1; shift ;;
    *) echo "device_check.sh: unknown argument $1; see --help" >&2; exit 2 ;;
  esac
done
if [[ -n "$build" ]]; then
  overtok=("$build/overtok")
  run=()
  tests=()
  for source in "$here"/tests/core/cuda/device_{streams_,}test.cc "$here"/tests/core/ops/*_test.cc; do tests+=("$build/tests/$(basename "$source" .cc)"); done
elif [[ -x "$here/run" ]]; then
  overtok=("$here/overtok")
  run=("$here/run")
  tests=()
  for program in "$here"/tests/*; do tests+=("tests/$(basename "$program")"); done
else
  echo "device_check.sh: $here is no bundle; name a build directory with --build" >&2
  exit 2
fi
mkdir -p "$out"
cd "$out" || exit 2
rm -f ./*.log ./*.json table.txt
start=$SECONDS
failed=0
rows=()     # JSON objects, one a check
wants() { [[ ",$only," == *",$1,"* ]]; }
left() { echo $((seconds - (SECONDS - start))); }
escape() { tr '\n\t' '  ' | tr -d '\000-\037' | sed 's/\\/\\\\/g; s/"/\\"/g'; }
# record KIND NAME RESULT SECONDS [JSON members]; RESULT: passed, failed, timed_out or skipped.
record() {
  rows+=("{\"kind\": \"$1\", \"name\": \"$2\", \"result\": \"$3\", \"seconds\": $4${5:+, $5}}")
  printf '%-7s %-34s %-9s %4d s  %s\n' "$1" "$2" "$3" "$4" "${6:-}" | tee -a table.txt
  if [[ "$3" == failed || "$3" == timed_out ]]; then failed=$((failed + 1)); fi
}
# The log's last words, as a JSON member.
reason() { printf '"reason": "%s"' "$(tail -n 4 "$1" | tail -c 600 | escape)"; }
# number KEY JSON: the first number of that name.
number() { grep -oE "\"$1\": ?-?[0-9][-+.0-9eE]*" <<<"$2" | head -n 1 | sed 's/.*: \{0,1\}//'; }
# attempt LIMIT LOG COMMAND...: sets `result` and `took`; a check never gets more than the time that is left.
attempt() {
  local limit=$1 log=$2 begin=$SECONDS status
  shift 2
  if (($(left) < limit)); then limit=$(left); fi
  if ((limit < 3)); then
    echo "not started: the time for all checks ($seconds s) is used up" >"$log"
    result=timed_out took=0
    return 1
  fi
  timeout -k 5 "$limit" "$@" >"$log" 2>&1
  status=$?
  took=$((SECONDS - begin))
  case $status in
    0) result=passed ;;
    124 | 137) result=timed_out; echo "stopped after $limit s" >>"$log" ;;
    *) result=failed ;;
  esac
  return $status
}

# A check of cuDNN's attention that failed because this program or the machine has no cuDNN was skipped.
without_cudnn() {
  if [[ $result == failed ]] && grep -qE 'was built without cuDNN|cuDNN was not found' "$1"; then result=skipped; fi
}

facts="none"
if command -v nvidia-smi >/dev/null; then
  facts="$(nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm,power.limit --format=csv,noheader | head -n 1)"
fi
printf 'device %s: %s\n' "$device" "$facts" | tee table.txt
if [[ "$device" == cuda && "$facts" == none ]]; then
  echo "device_check.sh: nvidia-smi was not found: is there a GPU and its driver?" | tee -a table.txt >&2
  exit 2
fi

if [[ $sanitize == 1 ]]; then
  sanitizer="$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null || true)"
  if [[ -z "$sanitizer" ]]; then
    echo "device_check.sh: compute-sanitizer was not found; it comes with the CUDA toolkit" >&2
    exit 2
  fi
  seconds=7200
  for tool in memcheck racecheck synccheck initcheck; do
    for program in "${tests[@]}"; do
      name="$(basename "$program")"
      OVERTOK_TEST_DEVICE=$device attempt 600 "sanitize_${tool}_$name.log" "$sanitizer" --tool "$tool" \
        --target-processes all --error-exitcode 99 ${run[@]+"${run[@]}"} "$program"
      record "$tool" "$name" "$result" "$took" "$(reason "sanitize_${tool}_$name.log")"
    done
  done
fi

if [[ $sanitize == 0 ]] && wants tests; then
  # Side by side: most of the time goes to references on the CPU.
  export OMP_NUM_THREADS="${OMP_NUM_THREADS:-2}"
  limit=100
  if (($(left) < limit)); then limit=$(left); fi
  at=$SECONDS
  for program in "${tests[@]}"; do
    name="$(basename "$program")"
    while (($(jobs -rp | wc -l) >= ${OVERTOK_CHECK_JOBS:-4})); do sleep 0.1; done
    (
      begin=$SECONDS
      OVERTOK_TEST_DEVICE=$device timeout -k 5 "$limit" ${run[@]+"${run[@]}"} "$program" >"test_$name.log" 2>&1
      echo "$? $((SECONDS - begin))" >"test_$name.status"
    ) &
  done
  wait
  for program in "${tests[@]}"; do
    name="$(basename "$program")"
    read -r status took <"test_$name.status"
    rm -f "test_$name.status"
    case $status in
      0) result=passed ;;
      124 | 137) result=timed_out ;;
      *) result=failed ;;
    esac
    detail="$(grep -cE '^\[       OK' "test_$name.log") passed, $(grep -cE '^\[  FAILED  \].*\([0-9]+ ms\)' "test_$name.log") failed"
    if [[ $result == passed ]]; then
      record test "$name" "$result" "$took" "\"cases\": \"$detail\"" "$detail"
    else
      record test "$name" "$result" "$took" "\"cases\": \"$detail\", $(reason "test_$name.log")" "$detail"
    fi
  done
  unset OMP_NUM_THREADS
  if [[ "$device" == cuda ]]; then
    for program in "${tests[@]}"; do
      name="$(basename "$program")"
      if [[ "$name" != *attention* ]]; then continue; fi
      log="test_${name}_cudnn.log"
      OVERTOK_TEST_DEVICE=cuda OVERTOK_TEST_ATTENTION=cudnn attempt 60 "$log" ${run[@]+"${run[@]}"} "$program"
      without_cudnn "$log"
      record test "${name}_cudnn" "$result" "$took" "$(reason "$log")"
    done
  fi
  printf 'op tests: %d s\n' "$((SECONDS - at))" | tee -a table.txt
fi

if [[ $sanitize == 0 ]] && wants traces; then
  # A corpus of 400 documents of 64 drawn ids (Park and Miller's generator), of 512 classes.
  rm -rf corpus
  awk 'BEGIN { x = 1; for (d = 0; d < 400; ++d) { line = ""; for (i = 0; i < 64; ++i) {
    x = (x * 16807) % 2147483647; line = line (i ? " " : "") x % 511 } print line } }' >ids.txt
  attempt 30 corpus.log "${overtok[@]}" tokenize --tokenizer ids --vocab-size 512 --eos 511 --no-bos --out corpus ids.txt
  if [[ $result != passed ]]; then record trace corpus "$result" "$took" "$(reason corpus.log)"; fi
  cat >tiny.yaml <<'YAML'
model: {vocab_size: 512, hidden_size: 128, intermediate_size: 256, num_hidden_layers: 2, num_attention_heads: 2,
        num_key_value_heads: 1, head_dim: 64, hybrid_norm: true}
optimizer: {lr: 0.02, adam_lr: 0.008}
data: {train: [corpus/*.h5], sequence_length: 64}
train: {steps: 4, batch_sequences: 4}
YAML
  cat >ss.yaml <<'YAML'
loss: {sampled_softmax: {stages: [{until: 1, candidates: 256}]}}
YAML
  cat >oe.yaml <<'YAML'
model: {ngram_embedding: {orders: [2, 3], rows: 4001, splits: 1, width: 32}}
YAML
  cat >ot_h_ss.yaml <<'YAML'
base: [oe.yaml, ss.yaml]
model: {second_token_head: {weight: 0.1}}
YAML
  cat >ot_2.yaml <<'YAML'
base: oe.yaml
model: {ngram_head: {orders: [2], rows: 4001, width: 32, weight: 0.1, correction: none}}
YAML
  # In f32 the two differ by the order of sums alone: of 2^-24 a step, grown by the norms and the square roots of Adam.
  # In bf16 (unit 2^-8) a sum that ends on the other side of a rounding border moves one activation by 0.4 %; gradients
  # by some such roundings; one step only, as turned signs change the next gradients by 0.2. The first steps of Adam are
  # +lr or -lr by sign: where 2 % of the signs turn, 2 sqrt(0.02) = 0.28.
  for arm in baseline ss ot_h_ss ot_2; do
    laid=()
    if [[ $arm != baseline ]]; then laid=(--arm "$arm.yaml"); fi
    for precision in f32 bf16; do
      steps=2 bounds=(--loss 1e-5 --gradient 1e-3 --update 1e-2)
      if [[ $precision == bf16 ]]; then steps=1 bounds=(--loss 3e-3 --gradient 0.05 --update 0.4); fi
      name="${arm}_$precision"
      at=$SECONDS
      log="trace_$name.log"
      if attempt 40 "$log" "${overtok[@]}" trace tiny.yaml "${laid[@]}" --unjudged --steps $steps --out "cpu_$name.h5" \
        train.device=cpu train.precision=$precision checkpoint.directory=run_cpu &&
        attempt 40 "$log" "${overtok[@]}" trace tiny.yaml "${laid[@]}" --unjudged --steps $steps --out "device_$name.h5" \
          train.device="$device" train.precision=$precision checkpoint.directory=run_device; then
        attempt 20 "$log" "${overtok[@]}" compare "cpu_$name.h5" "device_$name.h5" "${bounds[@]}" --json
      fi
      if grep -q '^{' "$log"; then
        record trace "$name" "$result" "$((SECONDS - at))" "\"comparison\": $(grep '^{' "$log" | tail -n 1)" \
          "$(sed -nE 's/.*"gradient":\{"largest":([^,]*),.*"update":\{"largest":([^,]*),.*/gradient \1 update \2/p' "$log")"
      else
        record trace "$name" "$result" "$((SECONDS - at))" "$(reason "$log")" "$(tail -n 1 "$log" | cut -c1-100)"
      fi
    done
  done
  rm -f ./*.h5
fi

# Predictions stand beside all that is measured: what the hardware file's rates make of the same ops.
hardware="$here/configs/hardware/h200.yaml"
# A line an op: model, name, shape, milliseconds, predicted milliseconds, share of the ceiling.
op_lines() {
  sed 's/},{/},\n{/g' "$1" | sed -nE 's/.*"model":"([^"]*)","name":"([^"]*)","storage":"([^"]*)","shape":"([^"]*)","milliseconds":([^,]*),.*"ceiling_milliseconds":([^,]*),"of_ceiling":([^,}]*).*/\1|\2|\4|\5|\6|\7/p' |
    awk -F'|' '{ printf "        %-5s %-25s %-22s %9.3f ms  predicted %9.3f  %4.0f%%\n", $1, $2, $3, $4, $5, 100 * $6 }'
}
if [[ $sanitize == 0 ]] && wants ops; then
  # The emulation is no measurement: a few ops try the script.
  shapes=(300m 1_2b 130m)
  flags=()
  if [[ "$device" == emulated ]]; then flags=(--only sum); fi
  if [[ "$device" != cuda ]]; then shapes=(small); fi
  for shape in "${shapes[@]}"; do
    log="ops_$shape.log"
    attempt 60 "$log" "${overtok[@]}" bench ops --device "$device" --shape "$shape" --hardware "$hardware" --seconds 0.1 ${flags[@]+"${flags[@]}"} --json
    if [[ $result == passed ]]; then
      record ops "$shape" "$result" "$took" "\"bench\": $(grep '^{' "$log" | tail -n 1)"
      grep '^{' "$log" | tail -n 1 >ops.json
      op_lines ops.json | tee -a table.txt
      rm -f ops.json
    else
      record ops "$shape" "$result" "$took" "$(reason "$log")" "$(tail -n 1 "$log" | cut -c1-100)"
    fi
    # Attention once more, by cuDNN: to be read beside the lines above.
    if [[ "$device" != cuda ]]; then continue; fi
    log="ops_${shape}_cudnn.log"
    attempt 60 "$log" "${overtok[@]}" bench ops --device cuda --attention cudnn --only attention --shape "$shape" --hardware "$hardware" --seconds 0.1 --json
    without_cudnn "$log"
    if [[ $result == passed ]]; then
      record ops "${shape}_cudnn" "$result" "$took" "\"bench\": $(grep '^{' "$log" | tail -n 1)"
      grep '^{' "$log" | tail -n 1 | sed -E 's/"(attention_(for|back)ward)"/"\1 cudnn"/g' >ops.json
      op_lines ops.json | tee -a table.txt
      rm -f ops.json
    else
      record ops "${shape}_cudnn" "$result" "$took" "$(reason "$log")" "$(tail -n 1 "$log" | cut -c1-100)"
    fi
  done
fi

# Cases of whole steps are RECIPE:ARM. Batches of 32 windows, so that all runs fit into the time; the optimizer's share is
# larger than in a run by recipe, which has 128 or 256. Tables have a tenth of the rows, whose values would take minutes to
# draw; a step touches nearly as many of them.
# open_case CASE: sets `recipe`, `arm`, `name` and `configuration`, what selects it of the program's commands.
# A case is RECIPE:ARM[:VARIANT]; variants: one_by_one hands ops over one by one in place of graphs, host has the tables
# in host memory.
open_case() {
  local variant
  IFS=: read -r recipe arm variant <<<"$1"
  name="$recipe${arm:+_$arm}${variant:+_$variant}"
  configuration=("$here/configs/recipes/$recipe.yaml")
  if [[ -n "$arm" ]]; then configuration+=(--arm "$here/configs/arms/$arm.yaml"); fi
  configuration+=(train.batch_sequences=32 train.precision=bf16)
  if [[ "$arm" == ot_h_ss ]]; then configuration+=(model.ngram_embedding.rows=1280000); fi
  if [[ "$recipe" == 1_2b ]]; then configuration+=(train.micro_batch_sequences=16); fi
  case "$variant" in
    one_by_one) configuration+=(train.cuda_graphs=false) ;;
    host) configuration+=(optimizer.tables.memory=host) ;;
  esac
  if [[ "$device" != cuda ]]; then
    # No measurement either: the least that tries the script.
    configuration+=(model.vocab_size=2048 model.hidden_size=64 model.intermediate_size=128 model.num_hidden_layers=1
      model.num_attention_heads=1 model.num_key_value_heads=1 model.head_dim=64 data.sequence_length=64
      train.batch_sequences=4 train.micro_batch_sequences=2)
    if [[ "$arm" == ss ]]; then configuration+=("loss.sampled_softmax.stages=[{until: 0.9, candidates: 512}]"); fi
  fi
}
step_cases=(130m: 130m:ss 130m:ss:one_by_one 300m: 300m:ss 300m:ot_h_ss 300m:ot_h_ss:host 520m: 520m:ss 1_2b: 1_2b:ss)
peer_cases=(130m: 130m:ss 300m:)
if [[ "$device" != cuda ]]; then step_cases=(130m: 130m:ss 130m:ss:one_by_one) peer_cases=(130m: 130m:ss); fi
declare -A rate_of    # tokens/s of the steps timed here

if [[ $sanitize == 0 ]] && wants steps; then
  # The ids name as many classes as text does: candidates have room, as in a run.
  for case in "${step_cases[@]}"; do
    open_case "$case"
    attempt 60 "step_$name.log" "${overtok[@]}" bench step "${configuration[@]}" --hardware "$hardware" --ids text \
      --warmup 1 --repetitions 3 train.device="$device"
    if [[ $result == passed ]]; then
      json="$(grep '^{' "step_$name.log" | tail -n 1)"
      rate_of[$name]="$(number tokens_per_second "$json")"
      shown="$(sed -nE 's/.*"tokens_per_second":([0-9]*).*"step_ms":([0-9]*).*"predicted_step_ms":([0-9]*).*"predicted_tokens_per_second":([0-9]*).*/\2 ms, predicted \3; \1 tokens\/s, predicted \4/p' <<<"$json")"
      idle="" busy="$(number device_ms "$json")"
      if [[ -n "$busy" ]]; then
        # Of a step's time, what the device did not spend between the step's first op and its last.
        idle="$(awk -v busy="$busy" -v step="$(number step_ms "$json")" 'BEGIN { printf "%.4f", 1 - busy / step }')"
        shown+="$(awk -v idle="$idle" -v o="$(number optimizer_ms "$json")" -v n="$(number naming_ms "$json")" -v h="$(number host_ms "$json")" \
          'BEGIN { printf "; device idle %.1f %%, optimizer %.1f ms, host %.1f ms (names %.1f)", 100 * idle, o, h, n }')"
      fi
      record step "$name" "$result" "$took" "\"bench\": $json${idle:+, \"idle\": $idle}" "$shown"
    else
      record step "$name" "$result" "$took" "$(reason "step_$name.log")" "$(tail -n 1 "step_$name.log" | cut -c1-100)"
    fi
  done
fi

# The flags that give tools/peer_torch.py the sizes of the configuration that open_case opened.
peer_flags() {
  "${overtok[@]}" config show "${configuration[@]}" train.device=cpu | awk '
    BEGIN {
      split("model.vocab_size --vocab model.hidden_size --hidden model.intermediate_size --inner " \
            "model.num_hidden_layers --layers model.num_attention_heads --heads model.num_key_value_heads --kv-heads " \
            "model.head_dim --head-dim model.rope_theta --rope-theta model.rms_norm_eps --rms-norm-eps " \
            "loss.z_loss --z-loss optimizer.lr --lr optimizer.adam_lr --adam-lr optimizer.momentum --momentum " \
            "optimizer.newton_schulz.steps --steps optimizer.newton_schulz.eps --newton-schulz-eps " \
            "optimizer.beta1 --beta1 optimizer.beta2 --beta2 optimizer.eps --eps optimizer.max_grad_norm --max-grad-norm " \
            "data.sequence_length --sequence train.batch_sequences --batch train.micro_batch_sequences --micro-batch " \
            "train.precision --precision", word, " ")
      for (i = 1; i in word; i += 2) flag[word[i]] = word[i + 1]
    }
    {
      match($0, /^ */)
      depth = RLENGTH / 2
      path[depth] = substr($1, 1, length($1) - 1)
      key = path[0]
      for (i = 1; i <= depth; ++i) key = key "." path[i]
      if (key in flag && NF == 2) print flag[key] "\n" $2
      if (key == "model.hybrid_norm" && $2 == "true") print "--hybrid-norm"
      if (key == "loss.sampled_softmax.stages" && match($0, /candidates: [0-9]+/)) {
        print "--candidates\n" substr($0, RSTART + 12, RLENGTH - 12)
      }
    }'
}

if [[ $sanitize == 0 ]] && wants peer; then
  python="${PYTHON:-python3}"
  probe="import torch; assert torch.cuda.is_available(), 'PyTorch ' + torch.__version__ + ' sees no GPU'"
  if [[ "$device" == cpu ]]; then probe="import torch"; fi
  why=""
  if [[ "$device" == emulated ]]; then
    why="PyTorch has no emulated device"
  elif ! command -v "$python" >/dev/null; then
    why="$python was not found"
  elif ! attempt 60 peer.log "$python" -c "$probe"; then
    why="$(tail -n 1 peer.log)"
  fi
  if [[ -n "$why" ]]; then
    record peer torch skipped 0 "\"reason\": \"$(escape <<<"$why")\"" "$(cut -c1-100 <<<"$why")"
  else
    # As PyTorch runs it at once, and compiled, which is faster but takes a compiler and minutes: each as far as time allows.
    # That the peer did not run is no fault of what is checked here: it is told, and fails nothing.
    caches="$(mktemp -d)"
    for mode in eager compiled; do
      for case in "${peer_cases[@]}"; do
        open_case "$case"
        mapfile -t flags < <(peer_flags)
        more=() limit=45 log="peer_${name}_$mode.log"
        if [[ $mode == compiled ]]; then more=(--compile) limit=75; fi
        if attempt "$limit" "$log" env TORCHINDUCTOR_CACHE_DIR="$caches/inductor" TRITON_CACHE_DIR="$caches/triton" "$python" \
          "$here/tools/peer_torch.py" "${flags[@]}" --device "$device" --warmup 2 --repetitions 3 ${more[@]+"${more[@]}"}; then
          json="$(grep '^{' "$log" | tail -n 1)"
          rate="$(number tokens_per_second "$json")"
          ours="${rate_of[$name]:-}" ratio=""
          shown="$(awk -v ms="$(number step_ms "$json")" -v rate="$rate" 'BEGIN { printf "%.0f ms; %.0f tokens/s", ms, rate }')"
          if [[ -n "$ours" ]]; then
            ratio="$(awk -v ours="$ours" -v rate="$rate" 'BEGIN { printf "%.3f", ours / rate }')"
            shown+="$(awk -v ours="$ours" -v ratio="$ratio" 'BEGIN { printf ", overtok %.0f: %.2f times", ours, ratio }')"
          fi
          if [[ "$(number micro_batch_sequences "$json")" != "$(number batch_sequences "$json")" && "$device" == cuda ]]; then
            shown+=", micro-batches of $(number micro_batch_sequences "$json")"
          fi
          record peer "${name}_$mode" passed "$took" "\"bench\": $json${ratio:+, \"overtok_tokens_per_second\": $ours, \"ratio\": $ratio}" "$shown"
        else
          record peer "${name}_$mode" skipped "$took" "$(reason "$log")" "$(tail -n 1 "$log" | cut -c1-100)"
        fi
      done
    done
    rm -rf "$caches"
  fi
fi

if command -v nvidia-smi >/dev/null; then
  nvidia-smi --query-gpu=clocks.sm,temperature.gpu,power.draw,clocks_throttle_reasons.active --format=csv,noheader >clocks.log 2>&1
fi
{
  printf '{"device": "%s", "facts": "%s", "seconds": %d, "failed": %d,\n "manifest": "%s",\n "checks": [\n' "$device" \
    "$(escape <<<"$facts")" "$((SECONDS - start))" "$failed" "$(if [[ -f "$here/MANIFEST" ]]; then tr "\n" ";" <"$here/MANIFEST" | escape; fi)"
  for i in "${!rows[@]}"; do
    printf '  %s%s\n' "${rows[$i]}" "$([[ $i -lt $((${#rows[@]} - 1)) ]] && echo ,)"
  done
  echo "]}"
} >result.json
printf '%d checks, %d failed, %d s; %s/result.json\n' "${#rows[@]}" "$failed" "$((SECONDS - start))" "$out" | tee -a table.txt
exit $((failed > 0))
