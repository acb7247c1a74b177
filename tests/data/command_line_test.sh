#!/bin/bash
# overtok tokenize and overtok data as a person calls them: exit codes, messages, and what is left
# behind. Usage: command_line_test.sh PROGRAM
source "$(dirname "${BASH_SOURCE[0]}")/../support/command_line.sh"

for i in $(seq 1 500); do echo "{\"text\": \"document number $i\\nof many\"}"; done > part-01.jsonl
echo 'not json' >> part-01.jsonl
succeeds "tokenize" "$program" tokenize --tokenizer bytes --out corpus --held-out 10% part-01.jsonl
says "part-01.jsonl:501: "
[ -f corpus/shard_00000.h5 ] || fail "no shard"
[ -f corpus/held_out/part/val/val.jsonl.gz ] || fail "no held-out file"
succeeds "info" "$program" data info corpus
says "bos 256, eos 257"
succeeds "verify" "$program" data verify 'corpus/*.h5'
says "every checksum matches"
succeeds "show" "$program" data show corpus --step 1 --batch 2 --length 64 --decode --tokenizer bytes
says '\nof many<257>'
echo "5 6" > good.ids
succeeds "ids" "$program" tokenize --tokenizer ids --vocab-size 10 --bos 1 --eos 2 --out ids good.ids
succeeds "show ids" "$program" data show ids --length 4 --order sequential
says "1 5 6 2"

refuses "used output" "exists already" "$program" tokenize --tokenizer bytes --out corpus part-01.jsonl
refuses "missing file" "absent.jsonl" "$program" tokenize --tokenizer bytes --out x absent.jsonl
refuses "missing tokenizer" "nowhere.json" \
  "$program" tokenize --tokenizer nowhere.json --out x part-01.jsonl
refuses "a pipe" "is not a regular file" \
  "$program" tokenize --tokenizer ids --vocab-size 10 --out x <(echo "5 6")
echo "3 10" > ids.txt
refuses "id beyond the vocabulary" "ids.txt:1: id 10 is not below the vocabulary size 10" \
  "$program" tokenize --tokenizer ids --vocab-size 10 --out x ids.txt
refuses "option without effect" "--vocab-size" \
  "$program" tokenize --tokenizer bytes --vocab-size 5 --out x part-01.jsonl
refuses "window longer than the data" "no whole window" "$program" data show ids --length 5
refuses "other tokenizer" "another tokenizer" \
  "$program" data show ids --length 2 --decode --tokenizer bytes
[ -e x ] || [ -e x.partial ] && fail "a refused run left something behind"

# A flipped byte in the middle of the ids.
cp corpus/shard_00000.h5 damaged.h5
offset=$(grep -abo 'd.o.c.u.m' damaged.h5 | head -1 | cut -d: -f1)
printf 'D' | dd of=damaged.h5 bs=1 seek="$offset" conv=notrunc 2> /dev/null
refuses "damaged shard" "do not match their checksum" "$program" data verify damaged.h5
head -c 5000 corpus/shard_00000.h5 > short.h5
refuses "cut-off shard" "short.h5" "$program" data info short.h5

# A run that is killed leaves nothing that looks finished, and the next one succeeds.
for i in $(seq 1 40); do cat part-01.jsonl; done | grep -v 'not json' > long.jsonl
for delay in 0.01 0.05 0.1; do
  "$program" tokenize --tokenizer bytes --out killed --threads 1 long.jsonl > /dev/null 2>&1 &
  sleep $delay
  if kill -9 $! 2> /dev/null; then
    wait $! 2> /dev/null
    if [ -e killed ]; then
      "$program" data verify killed > /dev/null 2>&1 || fail "a killed run left a broken output"
    fi
  fi
  rm -rf killed
done
succeeds "after a killed run" "$program" tokenize --tokenizer bytes --out killed long.jsonl
[ -e killed.partial ] && fail "the leftovers of a killed run are still there"

[ $failures -eq 0 ] && echo "all passed"
exit $((failures > 0))
